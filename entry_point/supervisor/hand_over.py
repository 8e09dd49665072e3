"""What the supervisor and its ranks exchange: files in a folder that they share.

Signals and exit codes cannot carry it: torchrun kills its workers 30 s after a signal, finished or
not, and takes any exit code but 0 for a failure.
"""

from __future__ import annotations

import os
from pathlib import Path

STARTED = "TRAIN_STARTED"
"""Environment variable: when the container's first process began, in seconds since the epoch."""
FOLDER = "TRAIN_HAND_OVER"
"""Environment variable: the folder. A rank that was started by hand has none."""


def write_config(folder: Path, yaml: str) -> None:
    """Hand the resolved configuration to the ranks."""
    (folder / "config.yaml").write_text(yaml, encoding="utf-8")


def read_config() -> str | None:
    """The resolved configuration, in a rank; None if no supervisor started this process."""
    folder = os.environ.get(FOLDER)
    return Path(folder, "config.yaml").read_text(encoding="utf-8") if folder else None


def request_stop(folder: Path) -> None:
    """Ask the ranks to stop."""
    (folder / "stop").touch()


def stop_requested() -> bool:
    """Whether the supervisor has asked this rank to stop."""
    folder = os.environ.get(FOLDER)
    return folder is not None and Path(folder, "stop").exists()


def report_exit_code(code: int) -> None:
    """Report how a rank ended, one of `contract.exit_codes`. The first report counts."""
    if (folder := os.environ.get(FOLDER)) is not None:
        temporary = Path(folder, f"code.{os.getpid()}")
        temporary.write_text(str(code))
        try:
            os.link(temporary, Path(folder, "code"))
        except FileExistsError:
            pass


def read_exit_code(folder: Path) -> int | None:
    """The first code that a rank reported, if any did."""
    try:
        return int((folder / "code").read_text())
    except FileNotFoundError:
        return None
