"""Locks a run folder: two processes that train in one would overwrite each other's files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from entry_point.contract.run_folder import RunBusyError, RunFolder
from entry_point.training.devices import Devices


@contextmanager
def run_lock(run: RunFolder, devices: Devices) -> Iterator[None]:
    """The first rank holds the lock; the system releases it however that process ends.

    A collective call: without the lock, every rank raises and writes nothing to the folder.

    The lock is a file in `output`: containers that share a run share that folder, and platforms
    upload only its subfolder `data`.

    Raises:
        RunBusyError: another process trains there, on the host or in a container.
    """
    lock = FileLock(run.lock)
    if not devices.from_first(devices.is_first and _acquire(lock, run)):
        raise RunBusyError(run.root)
    try:
        yield
    finally:
        lock.release()


def _acquire(lock: FileLock, run: RunFolder) -> bool:
    run.output.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True
