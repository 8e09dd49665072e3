"""Which part of its image a sample shows, and what is done to it: boxes, flips, augmentation.

A box is (top, left, height, width) in pixels of the upright image; orientation.py maps it to the
stored pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from entry_point.config.data_config import DataConfig
from entry_point.data.plan.augment.augmenter import Augmenter
from entry_point.data.plan.augment.policy import Floats
from entry_point.data.plan.philox import in_view, philox, unit

Ints = NDArray[np.int64]
Uniform = NDArray[np.float64]

_ATTEMPTS = 10
_STREAM = 1


@dataclass(frozen=True)
class CropPlan:
    """What to cut from N images, (N, ...), or from each of them V views, (N, V, ...)."""

    side: int
    """Height and width of a sample in pixels."""
    boxes: Ints
    """int64 (..., 4)."""
    flips: NDArray[np.bool_]
    """bool (...): whether to flip left-right."""
    operations: Floats | None
    """float32 (..., K, 8), see `CropPlanner.augmentation`."""

    def grouped(self, count: int) -> CropPlan:
        """The same, of which each `count` belong to one image."""
        tables = self.operations
        return CropPlan(
            self.side,
            self.boxes.reshape(-1, count, 4),
            self.flips.reshape(-1, count),
            None if tables is None else tables.reshape(-1, count, *tables.shape[1:]),
        )

    def of(self, i: int) -> Iterator[tuple[int, ...]]:
        """Where the views of image `i` are in the arrays."""
        for view in np.ndindex(self.flips.shape[1:]):
            yield i, *view


@dataclass(frozen=True)
class CropPlanner:
    """Boxes and flips, a function of (seed, epoch, sample, repeat, view) and the image's size.

    Training draws from the distributions of torchvision's RandomResizedCrop and
    RandomHorizontalFlip. Validation takes the center box that a resize of the shorter side to
    `resize` turns into `eval_size`, rounded to whole pixels.
    """

    data: DataConfig
    train: bool
    seed: int
    repeats: Ints | None = None
    """How often the epoch has drawn each sample of the batch before; None: never."""
    augmenter: Augmenter | None = None
    """Draws the augmentation of training samples; None: none."""
    view: Ints | int = 0
    """Which view of each sample this is."""

    def plan(self, epoch: int, indices: Ints, heights: Ints, widths: Ints) -> CropPlan:
        """What to cut from N upright images of these sizes. Validation has one view."""
        views = self.view_numbers()
        if not views.ndim:
            return self._plan(epoch, indices, heights, widths)
        # The views of a sample follow each other, as if each was a sample.
        count = len(views)
        each = replace(
            self,
            view=np.tile(views, len(indices)),
            repeats=None if self.repeats is None else np.repeat(self.repeats, count),
        )
        samples = (np.repeat(values, count) for values in (indices, heights, widths))
        return each._plan(epoch, *samples).grouped(count)

    def view_numbers(self) -> Ints:
        """The numbers of a sample's views, int64 (V,); int64 () for a single view."""
        several = self.train and self.data.views > 1
        return np.arange(self.data.views) if several else np.array(0)

    def _plan(self, epoch: int, indices: Ints, heights: Ints, widths: Ints) -> CropPlan:
        boxes, flips = self._boxes_and_flips(epoch, indices, heights, widths)
        return CropPlan(self.side(epoch), boxes, flips, self.augmentation(epoch, indices))

    def _boxes_and_flips(
        self, epoch: int, indices: Ints, heights: Ints, widths: Ints
    ) -> tuple[Ints, NDArray[np.bool_]]:
        if not self.train:
            return self._centre_boxes(heights, widths), np.zeros(len(indices), dtype=np.bool_)
        # One call for all draws, since its cost hardly depends on their number. Row 0 is for the
        # flip, the other rows are attempts at a box.
        rows = np.arange(1 + _ATTEMPTS)[:, None] + in_view(self.view)
        repeats = 0 if self.repeats is None else self.repeats
        u = unit(philox((self.seed, _STREAM), (indices, epoch, rows, repeats)))
        flips = u[0, 0] < self.data.hflip
        return self._random_boxes(u[:, 1:], heights, widths), flips

    def side(self, epoch: int) -> int:
        """Height and width of a sample in pixels."""
        return self.data.train_size(epoch) if self.train else self.data.val_size

    def augmentation(self, epoch: int, indices: Ints) -> Floats | None:
        """What to do to the resized and flipped crops, as `custom_op.augment_ops` writes it.

        float32 (N, K, 8), drawn apart from boxes and flips; None: nothing.
        """
        if self.augmenter is None or not self.train:
            return None
        repeats = 0 if self.repeats is None else self.repeats
        side = self.side(epoch)
        return self.augmenter.table(self.seed, epoch, indices, repeats, side, self.view)

    def _centre_boxes(self, heights: Ints, widths: Ints) -> Ints:
        share = self.data.val_size / self.data.resize
        side = np.maximum(1, np.rint(np.minimum(heights, widths) * share)).astype(np.int64)
        return np.stack([(heights - side) // 2, (widths - side) // 2, side, side], axis=1)

    def _random_boxes(self, u: Uniform, heights: Ints, widths: Ints) -> Ints:
        """For each image, the first attempt that fits, else a centered box."""
        drawn, fits = self._draw(u, heights, widths)
        chosen = drawn[fits.argmax(axis=0), np.arange(len(heights))]
        fallback = _fallback_boxes(heights, widths, self.data.ratio)
        return np.where(np.any(fits, axis=0, keepdims=True).T, chosen, fallback)

    def _draw(self, u: Uniform, heights: Ints, widths: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        low, high = self.data.scale
        area = heights * widths * (low + u[0] * (high - low))
        log_low, log_high = np.log(self.data.ratio)
        aspect = np.exp(log_low + u[1] * (log_high - log_low))
        width = np.rint(np.sqrt(area * aspect)).astype(np.int64)
        height = np.rint(np.sqrt(area / aspect)).astype(np.int64)
        fits = (width > 0) & (width <= widths) & (height > 0) & (height <= heights)
        top = np.floor(u[2] * (heights - height + 1)).astype(np.int64)
        left = np.floor(u[3] * (widths - width + 1)).astype(np.int64)
        return np.stack([top, left, height, width], axis=-1), fits


def _fallback_boxes(heights: Ints, widths: Ints, ratio: list[float]) -> Ints:
    """The largest centered boxes with an allowed aspect ratio, for images too long for others."""
    width = np.minimum(widths, np.maximum(1, np.rint(heights * ratio[1]).astype(np.int64)))
    height = np.minimum(heights, np.maximum(1, np.rint(widths / ratio[0]).astype(np.int64)))
    return np.stack([(heights - height) // 2, (widths - width) // 2, height, width], axis=1)
