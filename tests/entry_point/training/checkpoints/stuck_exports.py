"""A model whose export does not end, as on a disk that hangs.

While STUCK_EXPORT is set, half of the weights are written, then the file that it names.
"""

import os
import threading
from pathlib import Path

from torch import nn

from entry_point import model_folder
from tests.own_models import tiny_net

VARIABLE = "STUCK_EXPORT"


def net(num_classes: int) -> nn.Module:
    if VARIABLE in os.environ:
        model_folder.save_file = _write_half  # type: ignore[assignment, attr-defined]
    return tiny_net(num_classes)


def _write_half(_weights: object, file: Path, _metadata: object) -> None:
    file.write_bytes(b"half")
    Path(os.environ[VARIABLE]).touch()
    threading.Event().wait()
