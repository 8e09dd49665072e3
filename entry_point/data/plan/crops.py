"""Which part of its image a sample shows, and what is done to it: boxes, flips, augmentation.

A box is (top, left, height, width) in pixels of the upright image; orientation.py maps it to the
stored pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from entry_point.config.data_config import DataConfig
from entry_point.data.plan.augment.augmenter import Augmenter
from entry_point.data.plan.augment.policy import Floats
from entry_point.data.plan.philox import in_view, philox, unit
from entry_point.data.plan.views import Views

Ints = NDArray[np.int64]
Uniform = NDArray[np.float64]

_ATTEMPTS = 10
_STREAM = 1


@dataclass(frozen=True)
class CropPlanner:
    """Boxes and flips, a function of (seed, epoch, sample, repeat, view) and the image's size.

    Training draws from the distributions of torchvision's RandomResizedCrop (RandomCrop for the
    stall workload) and RandomHorizontalFlip. Validation takes the center box that a resize of the
    shorter side to `resize` turns into `eval_size`, rounded to whole pixels.
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
    local: bool = False
    """Whether these views are local ones."""

    def views(self, epoch: int, indices: Ints, heights: Ints, widths: Ints) -> list[Views]:
        """What to cut from N images, for each size of views. Validation has one view."""
        numbers = self.view_numbers()
        if len(numbers) == 1 and not numbers[0].ndim:
            return [self._views(epoch, indices, heights, widths)]
        found = []
        for some in numbers:
            # The views of a sample follow each other, as if each was a sample.
            each = replace(
                self,
                view=np.tile(some, len(indices)),
                repeats=None if self.repeats is None else np.repeat(self.repeats, len(some)),
                local=some[0] >= self.data.views,
            )
            sizes = (np.repeat(values, len(some)) for values in (indices, heights, widths))
            found.append(each._views(epoch, *sizes).grouped(len(some)))
        return found

    def view_numbers(self) -> list[Ints]:
        """The numbers of the views of each size, int64 (V,); int64 () for a single view."""
        if not self.train or self.data.several_views is None:
            return [np.array(0)]
        numbers = np.arange(self.data.views + self.data.local_views)
        return [some for some in np.split(numbers, [self.data.views]) if len(some)]

    def _views(self, epoch: int, indices: Ints, heights: Ints, widths: Ints) -> Views:
        boxes, flips = self.plan(epoch, indices, heights, widths)
        return Views(self.side(epoch), boxes, flips, self.augmentation(epoch, indices))

    def plan(
        self, epoch: int, indices: Ints, heights: Ints, widths: Ints
    ) -> tuple[Ints, NDArray[np.bool_]]:
        """Boxes, int64 (N, 4), and whether to flip left-right, bool (N,)."""
        if not self.train:
            return self._centre_boxes(heights, widths), np.zeros(len(indices), dtype=np.bool_)
        plain = self.data.transform == "stall"
        # One call for all draws, since its cost hardly depends on their number. Row 0 is for the
        # flip and plain boxes, the other rows are attempts at random boxes.
        rows = np.arange(1 if plain else 1 + _ATTEMPTS)[:, None] + in_view(self.view)
        repeats = 0 if self.repeats is None else self.repeats
        u = unit(philox((self.seed, _STREAM), (indices, epoch, rows, repeats)))
        flips = u[0, 0] < self.data.hflip
        if plain:
            return self._plain_boxes(u[1:3, 0], self.side(epoch), heights, widths), flips
        return self._random_boxes(u[:, 1:], heights, widths), flips

    def side(self, epoch: int) -> int:
        """Height and width of a sample in pixels."""
        if self.local:
            return self.data.local_size
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

    def _plain_boxes(self, u: Uniform, wanted: int, heights: Ints, widths: Ints) -> Ints:
        """Squares of `wanted` pixels, or the largest that fit smaller images."""
        side = np.minimum(wanted, np.minimum(heights, widths))
        top = np.floor(u[0] * (heights - side + 1)).astype(np.int64)
        left = np.floor(u[1] * (widths - side + 1)).astype(np.int64)
        return np.stack([top, left, side, side], axis=1)

    def _random_boxes(self, u: Uniform, heights: Ints, widths: Ints) -> Ints:
        """For each image, the first attempt that fits, else a centered box."""
        drawn, fits = self._draw(u, heights, widths)
        chosen = drawn[fits.argmax(axis=0), np.arange(len(heights))]
        fallback = _fallback_boxes(heights, widths, self.data.ratio)
        return np.where(np.any(fits, axis=0, keepdims=True).T, chosen, fallback)

    def _draw(self, u: Uniform, heights: Ints, widths: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        low, high = self.data.local_scale if self.local else self.data.scale
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
