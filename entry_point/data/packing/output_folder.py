"""Locks an output, so that only one process writes it at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from entry_point.data.errors import DataError

log = logging.getLogger(__name__)


@contextmanager
def locked(
    output: Path, remedy: str = "choose a writable folder", key: str = "output"
) -> Iterator[None]:
    """Hold the lock on `output`, a hidden file beside it; wait while another run holds it.

    Raises DataError if no file can be created in the folder; its message begins with the setting
    `key` and ends with `remedy`.
    """
    file = output.parent / f".{output.name}.lock"
    lock = FileLock(file)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        file.touch()  # FileLock would wait forever for a file that it cannot create
        lock.acquire(timeout=0)
    except Timeout:
        log.info("waiting for another run that writes %s", output)
        lock.acquire()
    except OSError as error:
        raise DataError(
            f"{key}={output.parent} cannot be written: {error.strerror}: {error.filename}: {remedy}"
        ) from error
    try:
        yield
    finally:
        file.unlink(missing_ok=True)  # a run that waits for the lock creates it again
        lock.release()
