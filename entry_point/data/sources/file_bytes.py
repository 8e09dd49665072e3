"""Bytes of files as tensors: one open, one read, no second copy."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from entry_point.data.errors import DataError

_CHUNK = 1 << 22


def read_bytes(file: str, start: int = 0, length: int | None = None) -> Tensor:
    """`length` bytes from `start`, uint8; by default the whole file.

    Raises OSError, or DataError if the file ends early.
    """
    opened = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(opened).st_size if length is None else length
        data = torch.empty(size, dtype=torch.uint8)
        view, done = memoryview(data.numpy().data), 0
        while done < size:  # the kernel may return less than requested
            count = os.preadv(opened, [view[done:]], start + done)
            if not count:
                raise DataError(f"{file} ends too early: copy it again or pack the dataset again")
            done += count
        return data
    finally:
        os.close(opened)


def read_into_page_cache(file: str) -> None:
    buffer = bytearray(_CHUNK)
    with Path(file).open("rb", buffering=0) as opened:
        while opened.readinto(buffer):
            pass
