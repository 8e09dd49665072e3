"""What the supervisor and its ranks exchange: files in a folder that they share.

Signals and exit codes cannot carry it: torchrun kills its workers 30 s after a signal, finished or
not, and takes any exit code but 0 for a failure.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path
from typing import NoReturn

from entry_point.contract import exit_codes
from entry_point.contract.whole_file import write_text

STARTED = "TRAIN_STARTED"
"""Environment variable: when the container's first process began, in seconds since the epoch."""
FOLDER = "TRAIN_HAND_OVER"
"""Environment variable: the folder. A rank that was started by hand has none."""
PARENT = "TRAIN_PARENT"
"""Environment variable: the process id that a rank's parent must have."""

_SOCKET = "/listener-abcdefgh"
_LONGEST_ADDRESS = 107
"""Linux allows no longer path for a socket."""


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


def read_exit_code(folder: Path) -> int | None:
    """The first code that a rank reported, if any did."""
    code = _read(folder, "code")
    return int(code) if code else None


def read_reason(folder: Path) -> str | None:
    """Why the first rank to fail did, if any has."""
    return _read(folder, "reason")


def read_death(folder: Path) -> tuple[str, int] | None:
    """The rank that torchrun saw die by a signal, if any did, and the signal."""
    death = (_read(folder, "death") or "").split()
    return (f"rank {death[0]}", int(death[1])) if death else None


def _read(folder: Path, name: str) -> str | None:
    try:
        return (folder / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


# -- in a rank


def read_config() -> str | None:
    """The resolved configuration, in a rank; None if no supervisor started this process."""
    folder = os.environ.get(FOLDER)
    return Path(folder, "config.yaml").read_text(encoding="utf-8") if folder else None


def keep_sockets() -> None:
    """Have this rank's workers open their sockets in the folder, which outlives no job.

    By default, `multiprocessing` makes a temporary folder for each process.
    """
    folder = os.environ.get(FOLDER)
    if folder is not None and len(os.fsencode(folder + _SOCKET)) <= _LONGEST_ADDRESS:
        # Its workers inherit it. There is no public way to set it.
        multiprocessing.current_process()._config["tempdir"] = folder  # type: ignore[attr-defined]


def stop_requested() -> bool:
    """Whether the supervisor has asked this rank to stop."""
    folder = os.environ.get(FOLDER)
    return folder is not None and Path(folder, "stop").exists()


def report_begun() -> None:
    """Report that this rank has taken a step and heeds a request to stop."""
    _report("begun", "")


def report_exit_code(code: int) -> None:
    """Report how a rank ended, one of `contract.exit_codes`. The first report counts."""
    _report("code", str(code))


def report_reason(reason: str) -> bool:
    """Report why this rank failed; False if another rank has reported already."""
    return _report("reason", reason)


def report_death(rank: int, signal: int) -> None:
    """Report a rank that a signal killed."""
    _report("death", f"{rank} {signal}")


def process_code(code: int) -> int:
    """The exit code of a rank's process: torchrun takes any code but 0 for a failure."""
    stopped_under_torchrun = "TORCHELASTIC_RUN_ID" in os.environ and code == exit_codes.STOPPED
    return exit_codes.FINISHED if stopped_under_torchrun else code


def exit_at_once(code: int) -> NoReturn:
    """Report the code and end this process and its workers without waiting for any of them."""
    report_exit_code(code)
    for worker in multiprocessing.active_children():
        worker.kill()
    sys.stdout.flush()
    os._exit(process_code(code))


def _report(name: str, text: str) -> bool:
    """Write a file unless it exists. Without a folder, or once the job is gone, do nothing."""
    folder = os.environ.get(FOLDER)
    try:
        if folder is not None:
            with Path(folder, name).open("x", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
    except FileExistsError:
        return False
    except FileNotFoundError:
        pass
    return True
