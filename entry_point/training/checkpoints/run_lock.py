"""Two processes must not train in one run folder: they would overwrite each other's files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from entry_point.contract.run_folder import RunBusyError, RunFolder
from entry_point.training.devices import Devices


@contextmanager
def run_lock(run: RunFolder, devices: Devices) -> Iterator[None]:
    """The first rank holds the run folder; the system lets go of it however that process ends.

    A collective call: no rank goes on, or leaves a word, in a folder that the first did not get.

    The lock is a file in `output`, which containers share where they share a run, and which no
    platform mirrors but for its folder `data`.

    Raises:
        RunBusyError: another process trains there, on the desk or in a container.
    """
    lock = FileLock(run.lock)
    if not devices.from_first(devices.is_first and _taken(lock, run)):
        raise RunBusyError(run.root)
    try:
        yield
    finally:
        lock.release()


def _taken(lock: FileLock, run: RunFolder) -> bool:
    run.output.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True
