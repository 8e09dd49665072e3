"""Two processes must not train in one run folder: they would overwrite each other's files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from entry_point.run_folder import RunFolder, RunFolderError


@contextmanager
def run_lock(run: RunFolder, first_rank: bool) -> Iterator[None]:
    """The first rank holds the run folder; the system lets go of it however that process ends.

    The lock is a file in `output`, which containers share where they share a run, and which no
    platform mirrors but for its folder `data`.

    Raises:
        RunFolderError: another process trains there, on the desk or in a container.
    """
    if not first_rank:
        yield
        return
    run.output.mkdir(parents=True, exist_ok=True)
    lock = FileLock(run.output / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise RunFolderError(
            f"another process is training in {run.root}; wait for it, stop it, or use another name"
        ) from error
    try:
        yield
    finally:
        lock.release()
