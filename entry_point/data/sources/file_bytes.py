"""Bytes of regular files as tensors: read with one open and one read, or memory-mapped.

Files are mapped at consecutive addresses, so that one tensor covers them all. Python's mmap module
cannot choose the address and keeps a file descriptor per map.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
import weakref
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_int, c_long, c_size_t, c_void_p
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from entry_point.data.errors import DataError
from entry_point.data.patience import patiently

_CHUNK = 1 << 22

_PROT_NONE, _MAP_FIXED = 0, 0x10
_FAILED = c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = c_void_p
_libc.mmap.argtypes = (c_void_p, c_size_t, c_int, c_int, c_int, c_long)
_libc.munmap.argtypes = (c_void_p, c_size_t)


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


class FileState(NamedTuple):
    """What tells one content of a file from another; a copy with the same times goes unnoticed."""

    size: int
    changed: int
    """Modification time in nanoseconds."""

    @classmethod
    def of(cls, file: str | int) -> FileState:
        """Of a path or a descriptor. Raises OSError."""
        status = os.stat(file)  # noqa: PTH116 - or of a descriptor
        return cls(status.st_size, status.st_mtime_ns)


def read_bytes(
    file: str | Path, start: int = 0, length: int | None = None, state: FileState | None = None
) -> Tensor:
    """`length` bytes from `start`, uint8; by default the whole file.

    Raises OSError, ReadError (see `patiently`), or DataError if the file ends early or, with
    `state`, has been replaced since.
    """
    return patiently(_read_once, file, start, length, state)


def _read_once(file: str | Path, start: int, length: int | None, state: FileState | None) -> Tensor:
    with opened(file) as descriptor:
        if state is not None and FileState.of(descriptor) != state:
            raise DataError(f"{file} was replaced while it was in use: start again")
        size = os.fstat(descriptor).st_size if length is None else length
        data = torch.empty(size, dtype=torch.uint8)
        view, done = memoryview(data.numpy().data), 0
        while done < size:  # the kernel may return less than requested
            count = os.preadv(descriptor, [view[done:]], start + done)
            if not count and start + size <= os.fstat(descriptor).st_size:
                raise OSError(errno.EIO, "it ended before its size")
            if not count:
                raise DataError(f"{file} ends too early: copy it again or pack the dataset again")
            done += count
        return data


def read_text(file: str | Path) -> str:
    """Returns the whole file, which is UTF-8. Raises as `read_bytes`, and UnicodeDecodeError."""
    return read_bytes(file).numpy().tobytes().decode()


def crc32(file: str | Path, start: int, end: int, checksum: int = 0) -> int:
    """CRC-32 of a stretch of a file, or of one that follows what has the CRC-32 `checksum`.

    Raises as `read_bytes`.
    """
    while start < end:
        part = read_bytes(file, start, min(_CHUNK, end - start))
        checksum = zlib.crc32(part.numpy().data, checksum)
        start += len(part)
    return checksum


def file_starts(files: Sequence[Path]) -> list[int]:
    """Returns where `map_files` places each file."""
    sizes = [_whole_pages(file.stat().st_size) for file in files]
    return list(accumulate(sizes[:-1], initial=0))


def _whole_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def map_files(files: Sequence[Path]) -> tuple[Tensor, list[int]]:
    """Returns the bytes of all files, uint8 and read-only, and the offset of each file in them.

    Files start at page boundaries. Accessing the gaps between them may end the process.

    Raises OSError, ReadError and DataError.
    """
    starts = file_starts(files)
    sizes = [file.stat().st_size for file in files]
    end = starts[-1] + _whole_pages(sizes[-1])
    base = _map(None, end, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, files[0])
    memory = (ctypes.c_ubyte * (starts[-1] + sizes[-1])).from_address(base)
    # Never unmap at exit: threads may still be reading.
    weakref.finalize(memory, _libc.munmap, base, end).atexit = False
    for file, start, size in zip(files, starts, sizes, strict=True):
        patiently(_map_file, file, base + start, size)
    return torch.frombuffer(memory, dtype=torch.uint8), starts


def _map_file(file: Path, address: int, size: int) -> None:
    with opened(file) as descriptor:
        flags = mmap.MAP_PRIVATE | _MAP_FIXED
        _map(address, size, mmap.PROT_READ, flags, descriptor, file)


def _map(
    address: int | None, size: int, protection: int, flags: int, descriptor: int, file: Path
) -> int:
    found: int = _libc.mmap(address, size, protection, flags, descriptor, 0)
    if found == _FAILED:
        reason = os.strerror(ctypes.get_errno())
        raise DataError(f"{file} cannot be memory-mapped ({reason}): use data.access=stream")
    return found
