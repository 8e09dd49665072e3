"""Bytes of regular files as tensors: one open, one read, no second copy."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from entry_point.data.errors import DataError

_CHUNK = 1 << 22


@contextmanager
def opened(file: str | Path) -> Iterator[int]:
    """A descriptor of a regular file. Raises OSError, also for a pipe, device or folder."""
    # Without O_NONBLOCK, opening a pipe waits until another process writes to it.
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(file))
        yield descriptor
    finally:
        os.close(descriptor)


def read_bytes(file: str | Path, start: int = 0, length: int | None = None) -> Tensor:
    """`length` bytes from `start`, uint8; by default the whole file.

    Raises OSError, or DataError if the file ends early.
    """
    with opened(file) as descriptor:
        size = os.fstat(descriptor).st_size if length is None else length
        data = torch.empty(size, dtype=torch.uint8)
        view, done = memoryview(data.numpy().data), 0
        while done < size:  # the kernel may return less than requested
            count = os.preadv(descriptor, [view[done:]], start + done)
            if not count:
                raise DataError(f"{file} ends too early: copy it again or pack the dataset again")
            done += count
        return data


def read_into_page_cache(file: str | Path) -> None:
    buffer = bytearray(_CHUNK)
    with opened(file) as descriptor:
        while os.readv(descriptor, [buffer]):
            pass
