"""Reads bytes of regular files as tensors, with one open and one read, or memory-mapped."""

from __future__ import annotations

import errno
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from entry_point.data.errors import DataError
from entry_point.data.retries import with_retries

_CHUNK = 1 << 22


@contextmanager
def opened(file: str | Path) -> Iterator[int]:
    """Yield a descriptor of a regular file. Raises OSError, also for a pipe, device or folder."""
    # Without O_NONBLOCK, opening a pipe would wait until another process writes to it.
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(file))
        yield descriptor
    finally:
        os.close(descriptor)


class FileState(NamedTuple):
    """Size and times of a file, to notice changes; a copy with the same times goes unnoticed."""

    size: int
    changed: int
    """Modification time in nanoseconds."""

    @classmethod
    def of(cls, file: str | int) -> FileState:
        """Returns the state of a path or a descriptor. Raises OSError."""
        status = os.stat(file)  # noqa: PTH116 - `file` may be a descriptor
        return cls(status.st_size, status.st_mtime_ns)


def read_bytes(
    file: str | Path, start: int = 0, length: int | None = None, state: FileState | None = None
) -> Tensor:
    """Returns `length` bytes from `start`, uint8; by default the whole file.

    Raises OSError, ReadError (see `with_retries`), or DataError if the file ends early or, with
    `state`, has been replaced since.
    """
    return with_retries(_read_once, file, start, length, state)


def _read_once(file: str | Path, start: int, length: int | None, state: FileState | None) -> Tensor:
    with opened(file) as descriptor:
        if state is not None and FileState.of(descriptor) != state:
            raise DataError(f"{file} was replaced while it was in use: start again")
        size = os.fstat(descriptor).st_size if length is None else length
        data = torch.empty(size, dtype=torch.uint8)
        view, done = memoryview(data.numpy().data), 0
        while done < size:  # a read may return fewer bytes than requested
            count = os.preadv(descriptor, [view[done:]], start + done)
            if not count and start + size <= os.fstat(descriptor).st_size:
                raise OSError(errno.EIO, "it ended before its size")
            if not count:
                raise DataError(f"{file} ends too early: copy it again or pack the dataset again")
            done += count
        return data


def read_text(file: str | Path) -> str:
    """Returns a whole file of UTF-8. Raises errors as `read_bytes`, and UnicodeDecodeError."""
    return read_bytes(file).numpy().tobytes().decode()


def crc32(file: str | Path, start: int, end: int, checksum: int = 0) -> int:
    """Returns the CRC-32 of a range of a file, continuing from `checksum`.

    Raises errors as `read_bytes`.
    """
    while start < end:
        part = read_bytes(file, start, min(_CHUNK, end - start))
        checksum = zlib.crc32(part.numpy().data, checksum)
        start += len(part)
    return checksum


def map_file(file: Path) -> Tensor:
    """Returns the bytes of a file, uint8, memory-mapped as long as a tensor refers to them.

    Raises OSError, ReadError and DataError.
    """
    return with_retries(_map_once, file)


def _map_once(file: Path) -> Tensor:
    with opened(file) as descriptor:
        size = os.fstat(descriptor).st_size
        try:
            # By descriptor, as torch takes only names in UTF-8. torch does not keep it open.
            return torch.from_file(f"/dev/fd/{descriptor}", size=size, dtype=torch.uint8)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            message = f"{file} cannot be memory-mapped ({reason}): use data.access=stream"
            raise DataError(message) from error
