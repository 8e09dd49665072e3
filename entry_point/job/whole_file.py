"""Writes files that are either complete or absent, even after a kill, a crash or power loss."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_PARTIAL = re.compile(r"\..+(\.[^.]+)\.\d+\1")
"""The default temporary name of a file with a suffix."""

UNSUPPORTED = (errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
"""Errors of file systems without locks, links, permissions or sync of folders."""


@contextmanager
def replacing(path: Path, temporary: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success, sync it to disk and rename it to `path`.

    The default temporary name starts with a dot and contains the process id: writers never collide,
    and a platform that mirrors the folder never sees a partial file under its final name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if temporary is None:
        temporary = path.with_name(f".{path.name}.{os.getpid()}{path.suffix}")
    with naming(path, temporary):
        try:
            yield temporary
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def remove_partial_files(folder: Path) -> None:
    """Remove temporary files of `replacing` below `folder`, to which no process may be writing."""
    for path in folder.rglob(".*"):
        if _PARTIAL.fullmatch(path.name):
            path.unlink()


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a binary file that is renamed to `path` once all of it is on disk.

    Every process uses the same temporary name, so the next attempt overwrites a file that a killed
    process left. Two processes must not write the same `path` at once.
    """
    part = path.with_name(f"{path.name}.part")
    with replacing(path, part) as temporary, temporary.open("wb") as file:
        yield file


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` as UTF-8."""
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode())


@contextmanager
def naming(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Name `path` in an OSError that names no file, as of write(), or only `temporary`."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(temporary)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with if_supported():
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def if_supported() -> Iterator[None]:
    """Ignore errors of UNSUPPORTED operations in the block, such as the sync of a folder."""
    try:
        yield
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
