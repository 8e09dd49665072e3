"""Memory of batches that nobody uses any more, to be filled again.

Fresh memory costs a page fault for every 4 kB, which takes longer than writing them.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

_MOST_FREE = 16
"""Pieces kept that nobody uses: as many as there are threads may be in use at a time."""


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
                fitting = torch.UntypedStorage(size)
                self._kept.append(fitting)
                for storage in free[: max(0, len(free) + 1 - _MOST_FREE)]:
                    self._kept.remove(storage)
            return torch.empty(0, dtype=torch.uint8).set_(fitting)


def _is_free(storage: torch.UntypedStorage) -> bool:
    return bool(torch._C._storage_Use_Count(storage._cdata) == 1)
