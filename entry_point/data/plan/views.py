"""Views: the parts of an image that a training sample shows, each drawn on its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from entry_point.data.plan.augment.policy import Floats

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Views:
    """What to cut from N images, for the views of one size.

    Arrays are (N, ...) for a single view, and (N, V, ...) for V views of each image.
    """

    side: int
    """Height and width of a view in pixels."""
    boxes: Ints
    """int64 (..., 4), as CropPlanner describes them."""
    flips: NDArray[np.bool_]
    """bool (...): whether to flip left-right."""
    operations: Floats | None
    """float32 (..., K, 8), see `CropPlanner.augmentation`."""

    def grouped(self, count: int) -> Views:
        """The same, of which each `count` belong to one image."""
        tables = self.operations
        return Views(
            self.side,
            self.boxes.reshape(-1, count, 4),
            self.flips.reshape(-1, count),
            None if tables is None else tables.reshape(-1, count, *tables.shape[1:]),
        )

    def of(self, i: int) -> Iterator[tuple[int, ...]]:
        """Where the views of image `i` are in the arrays."""
        for view in np.ndindex(self.flips.shape[1:]):
            yield i, *view
