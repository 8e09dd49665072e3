"""What makes the images of a batch, and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from entry_point.data.decode.allocation import Allocate
from entry_point.data.plan.crops import CropPlanner, Ints
from entry_point.data.sources.source import Source


@dataclass(frozen=True)
class MadeImages:
    images: Tensor
    """uint8 (N, 3, side, side), or for several views of each image (N, V, 3, side, side); channels
    last. With any content where damaged."""
    damage: dict[int, str]
    """The reason for each damaged position of the batch."""
    stale_indexes: int = 0
    """Images whose side index did not fit the file, as it has changed: they decode slower."""


MakeImages = Callable[[Source, CropPlanner, int, Ints, Allocate], MadeImages]
"""(source, planner, epoch, indices, allocate) -> the images of these samples."""
