"""The folder to make: its lock, what it already holds, and the rename that completes it."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from entry_point.data.errors import DataError
from entry_point.data.sources.dataset_description import DESCRIPTION, read_description

log = logging.getLogger(__name__)


def beside(output: Path, kind: str) -> Path:
    """The hidden path of a file or folder that exists only while `output` is made."""
    return output.parent / f".{output.name}.{kind}"


@contextmanager
def locked(
    output: Path, remedy: str = "choose a writable folder", key: str = "output"
) -> Iterator[None]:
    """Hold the lock on `output`; wait for another run that holds it.

    Raises DataError, which begins with the setting `key` and ends with `remedy`, if no file can be
    created there.
    """
    file = beside(output, "lock")
    lock = FileLock(file)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        file.touch()  # FileLock waits forever for a file that it cannot create
        lock.acquire(timeout=0)
    except Timeout:
        log.info("waiting for another run that writes %s", output)
        lock.acquire()
    except OSError as error:
        raise DataError(
            f"{key}={output} cannot be made: {error.strerror}: {error.filename}: {remedy}"
        ) from error
    try:
        yield
    finally:
        file.unlink(missing_ok=True)  # a run that waits for this file creates it again
        lock.release()


def is_complete(output: Path, made_from: str) -> bool:
    """Whether `output` is already made. Raises DataError if it holds anything else."""
    if not output.exists():
        return False
    if output.is_dir() and not any(output.iterdir()):
        if output.is_mount():
            raise DataError(f"output={output} is a mount point: choose a folder in it")
        return False
    if not (output / DESCRIPTION).is_file():
        raise DataError(f"output={output} holds other files: choose another folder")
    if read_description(output).made_from != made_from:
        raise DataError(
            f"output={output} holds a dataset made from other files or with other options: "
            "remove it or choose another folder"
        )
    log.info("%s is already complete", output)
    return True


def publish(data: Path, output: Path) -> None:
    """Rename the complete `data` to `output` and remove the rest of its work folder."""
    os.sync()
    data.rename(output)
    os.sync()
    shutil.rmtree(data.parent)
