"""Files that are whole under their name, even after a power failure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(file: Path) -> Iterator[BinaryIO]:
    """A file to write into; it gets its name when all of it is on the disk."""
    unfinished = file.with_name(f"{file.name}.part")
    with naming(file):
        with unfinished.open("wb") as opened:
            yield opened
            opened.flush()
            os.fsync(opened.fileno())
        unfinished.replace(file)


def write_text(file: Path, text: str) -> None:
    with whole_file(file) as opened:
        opened.write(text.encode())


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """An OSError of writing, which knows no name, is raised with the file's."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(file)) from error
