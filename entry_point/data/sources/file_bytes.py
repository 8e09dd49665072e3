"""Bytes of files as tensors: one open, one read, nothing copied twice."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from entry_point.data.errors import DataError

_CHUNK = 1 << 22


def read_file(file: str) -> Tensor:
    """The whole file, uint8."""
    return _read(file, 0, None)


def read_part(file: str, start: int, length: int) -> Tensor:
    """`length` bytes from `start` on, uint8. Raises DataError if the file ends before."""
    return _read(file, start, length)


def read_through(file: str) -> None:
    """Have the whole file in the page cache."""
    buffer = bytearray(_CHUNK)
    with Path(file).open("rb", buffering=0) as opened:
        while opened.readinto(buffer):
            pass


def _read(file: str, start: int, length: int | None) -> Tensor:
    opened = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(opened).st_size if length is None else length
        data = torch.empty(size, dtype=torch.uint8)
        view, done = memoryview(data.numpy().data), 0
        while done < size:  # the kernel may give less than was asked for
            count = os.preadv(opened, [view[done:]], start + done)
            if not count:
                raise DataError(f"{file} ends too early: copy it again or pack the data set again")
            done += count
        return data
    finally:
        os.close(opened)
