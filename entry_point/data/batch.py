"""What a pipeline hands to the training loop."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    images: Tensor
    """uint8 (N, 3, image_size, image_size), RGB, channels_last."""
    labels: Tensor
    """int64 (N,)."""
    indices: Tensor
    """int64 (N,), the samples' numbers in their source."""

    def pin_memory(self) -> Batch:
        return Batch(self.images.pin_memory(), self.labels.pin_memory(), self.indices.pin_memory())


def empty_images(count: int, size: int) -> Tensor:
    """Room for `count` images: uint8 (count, 3, size, size), channels_last."""
    return torch.empty((count, 3, size, size), dtype=torch.uint8, memory_format=torch.channels_last)
