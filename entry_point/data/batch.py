"""What a pipeline hands to the training loop."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Damage:
    """An image that could not be decoded."""

    key: str
    reason: str


@dataclass(frozen=True)
class Batch:
    images: Tensor
    """uint8 (N, 3, image_size, image_size), RGB, channels_last."""
    labels: Tensor
    """int64 (N,)."""
    indices: Tensor
    """int64 (N,), the samples' numbers in their source."""
    damage: tuple[Damage, ...] = ()
    """Images that were asked for and could not be decoded."""

    def pin_memory(self) -> Batch:
        return replace(
            self,
            images=self.images.pin_memory(),
            labels=self.labels.pin_memory(),
            indices=self.indices.pin_memory(),
        )


def empty_images(count: int, side: int) -> Tensor:
    """Room for `count` images: uint8 (count, 3, side, side), channels_last."""
    return torch.empty((count, 3, side, side), dtype=torch.uint8, memory_format=torch.channels_last)
