"""A model that makes reads hang, as on a network file system that is gone.

While the file that HUNG_READS names exists, reading a file whose path contains its text never ends;
the first such read creates the file `<name>.reached`. HUNG_RANK names the one rank it hangs on.
"""

import os
import threading
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from tests.own_models import tiny_net

VARIABLE, RANK = "HUNG_READS", "HUNG_RANK"

_preadv = os.preadv


def _hanging_preadv(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
    trigger, file = Path(os.environ[VARIABLE]), Path(f"/proc/self/fd/{descriptor}").readlink()
    here = os.environ.get("RANK", "0") == os.environ.get(RANK, os.environ.get("RANK", "0"))
    if here and trigger.exists() and trigger.read_text() in str(file):
        trigger.with_suffix(".reached").touch()
        threading.Event().wait()
    return _preadv(descriptor, buffers, offset)


def net(num_classes: int) -> nn.Module:
    os.preadv = _hanging_preadv  # type: ignore[assignment]
    return tiny_net(num_classes)
