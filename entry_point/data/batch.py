"""What a pipeline hands to the training loop."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from entry_point.data.decode.reused_memory import ReusedMemory
from entry_point.data.errors import DataError
from entry_point.data.spans import Span

_shared = False
_pinned = False
_reused = ReusedMemory()


@dataclass(frozen=True)
class Damage:
    """An image that could not be decoded."""

    key: str
    reason: str


@dataclass(frozen=True)
class Batch:
    images: Tensor
    """uint8 (N, 3, image_size, image_size), channels_last: RGB, or YCbCr for the stall workload.
    Float32 from 0 to 1, ready for the model, with data.transform_on=cpu."""
    labels: Tensor
    """int64 (N,)."""
    indices: Tensor
    """int64 (N,), the samples' numbers in their source."""
    damage: tuple[Damage, ...] = ()
    """Images that were asked for and could not be decoded."""
    spans: tuple[Span, ...] = ()
    """What its making took, where that is recorded."""

    def pin_memory(self) -> Batch:
        return replace(
            self,
            images=self.images.pin_memory(),
            labels=self.labels.pin_memory(),
            indices=self.indices.pin_memory(),
        )


def allocate_in_shared_memory() -> None:
    """Have this process make its images where another can map them: it hands over no copy."""
    global _shared
    _shared = True


def allocate_in_pinned_memory() -> None:
    """Have this process make its images where a GPU fetches them itself: no copy to pin them."""
    global _pinned
    _pinned = True


def empty_images(count: int, side: int) -> Tensor:
    """Room for `count` images: uint8 (count, 3, side, side), channels_last."""
    return _memory(count * side * side * 3).view(count, side, side, 3).permute(0, 3, 1, 2)


def empty_floats(count: int, side: int) -> Tensor:
    """Room for `count` images as the model takes them: float32 (count, 3, side, side)."""
    return _memory(4 * count * side * side * 3).view(torch.float32).view(count, 3, side, side)


def _memory(size: int) -> Tensor:
    if _shared:
        return _shared_memory(size)
    if _pinned:  # torch keeps and reuses it, not before copies to the GPU have ended
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    return _reused.take(size)


def _shared_memory(size: int) -> Tensor:
    try:
        storage = torch.UntypedStorage._new_shared(size)
    except RuntimeError as error:
        raise DataError(
            f"no shared memory for a batch of {size} bytes ({error}): give the container more "
            "(docker run --shm-size), or use pipeline=threads, which needs none"
        ) from error
    return torch.empty(0, dtype=torch.uint8).set_(storage)
