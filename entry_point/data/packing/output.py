"""The folder to make: its lock, what is there already, and how it comes under its name."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from entry_point.data.errors import DataError
from entry_point.data.sources.index import DESCRIPTION, read_description

log = logging.getLogger(__name__)


def beside(output: Path, kind: str) -> Path:
    """The name of something that goes with `output` while it is made."""
    return output.parent / f".{output.name}.{kind}"


@contextmanager
def locked(output: Path) -> Iterator[None]:
    """Alone at work on `output`; another run that is at it is waited for."""
    file = beside(output, "lock")
    lock = FileLock(file)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        file.touch()  # where no file can be made, the lock would be waited for
        lock.acquire(timeout=0)
    except Timeout:
        log.info("waiting for another run that makes %s", output)
        lock.acquire()
    except OSError as error:
        raise DataError(
            f"output={output} cannot be made: {error.strerror}: {error.filename}: choose a folder "
            "that can be written to"
        ) from error
    try:
        yield
    finally:
        file.unlink(missing_ok=True)  # a run that waits for this very file makes a new one
        lock.release()


def is_complete(output: Path, made_from: str) -> bool:
    """Whether `output` is made already. Raises DataError where it is anything else."""
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
            f"output={output} holds a data set made from other files or with other options: "
            "remove it or choose another folder"
        )
    log.info("%s is complete already", output)
    return True


def publish(data: Path, output: Path) -> None:
    """Give the complete `data` its name; then what was kept beside it to go on from goes."""
    os.sync()
    data.rename(output)
    os.sync()
    shutil.rmtree(data.parent)
