"""Allocates memory for the images of a batch; the engine chooses the allocator."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from entry_point.data.errors import DataError

Allocate = Callable[[int], Tensor]
"""Maps a size in bytes to an uninitialized tensor, uint8 (size,)."""

_MOST_FREE = 16
"""Most free blocks to keep, besides the blocks in use."""


def empty_images(allocate: Allocate, count: int, side: int) -> Tensor:
    """Returns memory for samples: uint8 (count, 3, side, side), channels_last."""
    shape = (count, side, side, 3)
    return allocate(math.prod(shape)).view(shape).movedim(-1, -3)


class ReusedMemory:
    """Reuses the memory of batches that no tensor refers to any more.

    Fresh memory costs a page fault per 4 kB, which takes longer than writing 4 kB. The reference
    count of torch's storage tells when its last tensor is gone.
    """

    def __init__(self) -> None:
        self._kept: list[torch.UntypedStorage] = []
        self._lock = threading.Lock()

    def __call__(self, size: int) -> Tensor:
        with self._lock:
            free = [each for each in self._kept if torch._C._storage_Use_Count(each._cdata) == 1]
            fitting = next((storage for storage in free if storage.nbytes() == size), None)
            if fitting is None:
                fitting = torch.UntypedStorage(size)
                self._kept.append(fitting)
                for storage in free[: max(0, len(free) + 1 - _MOST_FREE)]:
                    self._kept.remove(storage)
            return torch.empty(0, dtype=torch.uint8).set_(fitting)


reused_memory = ReusedMemory()
"""The pool that all loaders of a process share: validation reuses training's memory."""


def pinned_memory(size: int) -> Tensor:
    """Returns memory that a GPU copies from directly; torch reuses it once copies have finished."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def shared_memory(size: int) -> Tensor:
    """Returns memory that another process can map, so that batches need not be copied."""
    try:
        storage = torch.UntypedStorage._new_shared(size)
    except RuntimeError as error:
        for left in Path("/dev/shm").glob(f"torch_{os.getpid()}_*"):
            left.unlink(missing_ok=True)  # torch leaves a file that did not fit
        raise DataError(
            f"no shared memory for a batch of {size} bytes ({error}): give the container more "
            "(docker run --shm-size), or use pipeline=threads, which needs none"
        ) from error
    return torch.empty(0, dtype=torch.uint8).set_(storage)
