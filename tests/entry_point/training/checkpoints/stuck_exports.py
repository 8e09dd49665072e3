"""Models whose export does not end, as on a disk that hangs.

While STUCK_EXPORT is set, half of the weights are written, then the file that it names.
EXPORT_SECONDS is what an export may take instead of a minute.
"""

import os
import threading
from pathlib import Path

from torch import nn

from entry_point import model_folder
from entry_point.job import stop
from project.models import small_net
from tests.entry_point.training.checkpoints import hung_reads

VARIABLE, SECONDS = "STUCK_EXPORT", "EXPORT_SECONDS"


def net(num_classes: int) -> nn.Module:
    """Has batch normalization."""
    stop.EXPORT_S = float(os.environ.get(SECONDS, stop.EXPORT_S))
    if VARIABLE in os.environ:
        model_folder.write_weights = _write_half  # type: ignore[assignment, attr-defined]
    return small_net(num_classes, width=8)


def hung_net(num_classes: int) -> nn.Module:
    """Reads may hang, too."""
    hung_reads.net(num_classes)
    return net(num_classes)


def _write_half(_network: nn.Module, path: str, **_metadata: object) -> None:
    Path(path).write_bytes(b"half")
    Path(os.environ[VARIABLE]).touch()
    threading.Event().wait()
