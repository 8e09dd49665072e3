"""Memory-maps files at consecutive addresses, so that one tensor covers them all.

Python's mmap module cannot choose the address and keeps a file descriptor per map.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Sequence
from ctypes import c_int, c_long, c_size_t, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from entry_point.data.errors import DataError
from entry_point.data.sources.file_bytes import opened

_PROT_NONE, _MAP_FIXED = 0, 0x10
_FAILED = c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = c_void_p
_libc.mmap.argtypes = (c_void_p, c_size_t, c_int, c_int, c_int, c_long)
_libc.munmap.argtypes = (c_void_p, c_size_t)


def map_files(files: Sequence[Path]) -> tuple[Tensor, list[int]]:
    """The bytes of all files, uint8 and read-only, and the offset of each file in them.

    Files start at page boundaries. Accessing the gaps between them may end the process.
    """
    sizes = [file.stat().st_size for file in files]
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    base = _map(None, end, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, files[0])
    memory = (ctypes.c_ubyte * (starts[-1] + sizes[-1])).from_address(base)
    # Never unmap at exit: threads may still be reading.
    weakref.finalize(memory, _libc.munmap, base, end).atexit = False
    for file, start, size in zip(files, starts, sizes, strict=True):
        with opened(file) as descriptor:
            flags = mmap.MAP_PRIVATE | _MAP_FIXED
            _map(base + start, size, mmap.PROT_READ, flags, descriptor, file)
    return torch.frombuffer(memory, dtype=torch.uint8), starts


def _map(
    address: int | None, size: int, protection: int, flags: int, descriptor: int, file: Path
) -> int:
    found: int = _libc.mmap(address, size, protection, flags, descriptor, 0)
    if found == _FAILED:
        reason = os.strerror(ctypes.get_errno())
        raise DataError(f"{file} cannot be memory-mapped ({reason}): use data.access=stream")
    return found
