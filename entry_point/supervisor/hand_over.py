"""What the container's first process and the ranks tell each other, by a folder they share.

Files rather than signals and exit codes: torchrun kills its workers 30 s after a signal, whatever
they write, and takes anything but 0 for a failure.
"""

from __future__ import annotations

import os
from pathlib import Path

STARTED = "TRAIN_STARTED"
"""Environment variable: seconds since the epoch when the first process began."""
FOLDER = "TRAIN_HAND_OVER"
"""Environment variable: the folder. Without it nobody asks and nobody reads."""


def ask_to_stop(folder: Path) -> None:
    """Of the ranks, by the container's first process."""
    (folder / "stop").touch()


def stop_asked() -> bool:
    """Whether this process's container was asked to stop."""
    folder = os.environ.get(FOLDER)
    return folder is not None and Path(folder, "stop").exists()


def report_exit_code(code: int) -> None:
    """Tell how a rank ends, one of `contract.exit_codes`; the first to tell knows best."""
    if (folder := os.environ.get(FOLDER)) is not None:
        temporary = Path(folder, f"code.{os.getpid()}")
        temporary.write_text(str(code))
        try:
            os.link(temporary, Path(folder, "code"))
        except FileExistsError:
            pass


def read_exit_code(folder: Path) -> int | None:
    """What the first rank to end told, if any did."""
    try:
        return int((folder / "code").read_text())
    except FileNotFoundError:
        return None
