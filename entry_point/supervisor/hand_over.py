"""What the supervisor and its ranks exchange, as files in a temporary folder that they share.

The supervisor writes `config.yaml`, and `stop` to ask for a checkpoint and an end: between steps,
the ranks look whether it is there. A signal would also reach the processes that load data. A rank
writes `begun` once it heeds such a request, and `reason` if it fails.
"""

from __future__ import annotations

import os
from pathlib import Path

from entry_point.contract.whole_file import write_text

STARTED = "TRAIN_STARTED"
"""Environment variable: when the container's first process began, in seconds since the epoch."""
FOLDER = "TRAIN_HAND_OVER"
"""Environment variable: the folder. A rank that was started by hand or by torchrun has none."""


# -- in the supervisor


def write_config(folder: Path, yaml: str) -> None:
    """Hand the resolved configuration to the ranks."""
    write_text(folder / "config.yaml", yaml)


def request_stop(folder: Path) -> None:
    """Ask the ranks to stop."""
    (folder / "stop").touch()


def has_begun(folder: Path) -> bool:
    """Whether a rank has taken a step, so that a stop has something to save."""
    return (folder / "begun").exists()


def read_reason(folder: Path) -> str | None:
    """Why the first rank to fail did, if any has."""
    path = folder / "reason"
    return path.read_text(encoding="utf-8") if path.exists() else None


# -- in a rank


def shared_folder() -> Path | None:
    """The folder; None if no supervisor started this process."""
    folder = os.environ.get(FOLDER)
    return Path(folder) if folder else None


def read_config() -> str | None:
    """The resolved configuration; None if no supervisor started this process."""
    folder = shared_folder()
    return (folder / "config.yaml").read_text(encoding="utf-8") if folder else None


def stop_requested() -> bool:
    """Whether the supervisor has asked this rank to stop."""
    folder = shared_folder()
    return folder is not None and (folder / "stop").exists()


def report_begun() -> None:
    """Report that this rank has taken a step and heeds a request to stop."""
    if folder := shared_folder():
        (folder / "begun").touch()


def report_reason(reason: str) -> bool:
    """Report why this rank failed; False if another rank has reported already."""
    if folder := shared_folder():
        try:
            with (folder / "reason").open("x", encoding="utf-8", errors="backslashreplace") as file:
                file.write(reason)
        except FileExistsError:
            return False
    return True
