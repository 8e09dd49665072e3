"""Memory of batches that nobody uses any more, to be filled again.

Fresh memory costs a page fault for every 4 kB, which takes longer than writing them.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

_MOST = 16
"""Pieces of memory kept; what is needed beyond is fresh and goes when it is let go."""


class ReusedMemory:
    """Hands out memory; torch's count of references tells when all tensors over it are gone."""

    def __init__(self) -> None:
        self._kept: list[torch.UntypedStorage] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> Tensor:
        """uint8 (size,), with any content."""
        with self._lock:
            free = [storage for storage in self._kept if _is_free(storage)]
            fitting = next((storage for storage in free if storage.nbytes() == size), None)
            if fitting is None:
                if len(self._kept) == _MOST and free:
                    self._kept.remove(free[0])
                fitting = torch.UntypedStorage(size)
                if len(self._kept) < _MOST:
                    self._kept.append(fitting)
            return torch.empty(0, dtype=torch.uint8).set_(fitting)


def _is_free(storage: torch.UntypedStorage) -> bool:
    return bool(torch._C._storage_Use_Count(storage._cdata) == 1)
