"""A model that makes reads fail, as on a network disk that is gone.

While the file that FAILING_READS names exists, reading a file whose path contains its text fails;
the first such read creates the file `<name>.reached`. FAILING_RANK names the one rank it fails on.
FAILING_PAUSE is the time before each further try, in seconds.
"""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from entry_point.data import retries
from tests.own_models import tiny_net

VARIABLE, RANK, PAUSE = "FAILING_READS", "FAILING_RANK", "FAILING_PAUSE"

_preadv = os.preadv


def _failing_preadv(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
    trigger, file = Path(os.environ[VARIABLE]), Path(f"/proc/self/fd/{descriptor}").readlink()
    rank = os.environ.get("RANK", "0")
    if rank == os.environ.get(RANK, rank) and trigger.exists():
        if trigger.read_text() in str(file):
            trigger.with_suffix(".reached").touch()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
    return _preadv(descriptor, buffers, offset)


def net(num_classes: int) -> nn.Module:
    os.preadv = _failing_preadv  # type: ignore[assignment]
    retries.PAUSES = (float(os.environ.get(PAUSE, "0")),) * 3
    return tiny_net(num_classes)
