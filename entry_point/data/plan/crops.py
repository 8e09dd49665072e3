"""Plans how samples are made from their images: boxes, flips and augmentation.

A box is (top, left, height, width) in pixels of the upright image.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from entry_point.config.data_config import DataConfig
from entry_point.data.plan.philox import philox, unit
from entry_point.data.plan.samples import Ints, Samples

if TYPE_CHECKING:  # opening a dataset needs no operator
    from entry_point.data.plan.policies import Augmenter, Floats

Uniform = NDArray[np.float64]

_Int = TypeVar("_Int", bound=np.integer)

_ATTEMPTS = 10
_STREAM = 1
_FIRST_TRANSPOSED = 5
"""EXIF orientations from 5 to 8: the stored width is the height of the upright image."""


@dataclass(frozen=True)
class CropPlan:
    """The crops of N samples."""

    side: int
    """Height and width of a sample in pixels."""
    boxes: Ints
    """int64 (N, 4)."""
    flips: NDArray[np.bool_]
    """bool (N,): whether to flip left-right."""
    operations: Floats | None
    """float32 (N, K, 8): operations on the resized and flipped crops, in the form of
    `custom_op.augment_ops`; None without any."""

    def __len__(self) -> int:
        return len(self.flips)


@dataclass(frozen=True)
class Geometry:
    """Positions of N samples in their upright images, to transform masks, boxes and points alike.

    A sample shows its box, resized to side x side pixels, then flipped where `flips` is true.
    """

    side: int
    """Height and width of a sample in pixels."""
    boxes: Ints
    """int64 (N, 4): top, left, height and width in pixels of the image."""
    flips: NDArray[np.bool_]
    """bool (N,): whether flipped left-right."""
    heights: Ints
    """int64 (N,): the image's height in pixels."""
    widths: Ints
    training: bool = field(default=True, kw_only=True)
    """Whether the samples are for training, whose targets must be transformed like the images. For
    evaluation, targets may keep the pixels of the image."""

    def of(self, places: Ints) -> Geometry:
        """Returns the geometry of the samples at these places."""
        columns = (each[places] for each in self._columns())
        return Geometry(self.side, *columns, training=self.training)

    def replace(self, places: Ints, others: Geometry) -> None:
        """Replace the samples at these places by `others`."""
        for own, other in zip(self._columns(), others._columns(), strict=True):
            own[places] = other

    def _columns(self) -> tuple[NDArray[Any], ...]:
        return self.boxes, self.flips, self.heights, self.widths


@dataclass(frozen=True)
class CropPlanner:
    """Plans boxes and flips as a function of (seed, epoch, image, repeat, view) and the image size.

    Training draws from the distributions of torchvision's RandomResizedCrop and
    RandomHorizontalFlip. Validation takes the center box that becomes `image_size` pixels when the
    shorter side is resized to `resize`, rounded to whole pixels; or the whole image.
    """

    data: DataConfig
    train: bool
    seed: int
    augmenter: Augmenter | None = None
    """Draws the augmentation of training samples besides boxes and flips; None without any."""

    @property
    def views(self) -> int:
        """Number of samples of each image."""
        return self.data.views if self.train else 1

    def plan(self, samples: Samples, heights: Ints, widths: Ints) -> CropPlan:
        """Returns the crops from upright images of these sizes, each with `views` samples."""
        side, views = self.side(samples.epoch), self.views
        heights, widths = np.repeat(heights, views), np.repeat(widths, views)
        if not self.train:
            flips = np.zeros(len(samples), dtype=np.bool_)
            return CropPlan(side, self._fixed_boxes(heights, widths), flips, None)
        # All draws in one call, because the cost hardly depends on their number. Row 0 decides the
        # flip; each other row is one attempt at a box.
        draws = np.arange(1 + _ATTEMPTS)[:, None]
        u = unit(philox((self.seed, _STREAM), samples.counter(draws)))
        boxes, flips = self._random_boxes(u[:, 1:], heights, widths), u[0, 0] < self.data.hflip
        if self.augmenter is None:
            return CropPlan(side, boxes, flips, None)
        return CropPlan(side, boxes, flips, self.augmenter.table(self.seed, samples, side))

    def side(self, epoch: int) -> int:
        """Returns the height and width of a sample in pixels."""
        return self.data.train_size(epoch) if self.train else self.data.image_size

    def _fixed_boxes(self, heights: Ints, widths: Ints) -> Ints:
        if self.data.crop == "squash":
            zero = np.zeros_like(heights)
            return np.stack([zero, zero, heights, widths], axis=1)
        share = self.data.image_size / self.data.resize
        side = np.maximum(1, np.rint(np.minimum(heights, widths) * share)).astype(np.int64)
        return np.stack([(heights - side) // 2, (widths - side) // 2, side, side], axis=1)

    def _random_boxes(self, u: Uniform, heights: Ints, widths: Ints) -> Ints:
        """Returns the first box that fits each image; if none does, as in very elongated images,
        the largest centered box with an allowed aspect ratio."""
        low, high = self.data.scale
        area = heights * widths * (low + u[0] * (high - low))
        log_low, log_high = np.log(self.data.ratio)
        aspect = np.exp(log_low + u[1] * (log_high - log_low))
        width = np.rint(np.sqrt(area * aspect)).astype(np.int64)
        height = np.rint(np.sqrt(area / aspect)).astype(np.int64)
        fits = (width > 0) & (width <= widths) & (height > 0) & (height <= heights)
        top = np.floor(u[2] * (heights - height + 1)).astype(np.int64)
        left = np.floor(u[3] * (widths - width + 1)).astype(np.int64)
        drawn = np.stack([top, left, height, width], axis=-1)
        chosen = drawn[fits.argmax(axis=0), np.arange(len(heights))]
        flat, tall = self.data.ratio
        width = np.minimum(widths, np.maximum(1, np.rint(heights * tall).astype(np.int64)))
        height = np.minimum(heights, np.maximum(1, np.rint(widths / flat).astype(np.int64)))
        top, left = (heights - height) // 2, (widths - width) // 2
        centered = np.stack([top, left, height, width], axis=1)
        return np.where(np.any(fits, axis=0, keepdims=True).T, chosen, centered)


def upright_size(
    height: NDArray[_Int], width: NDArray[_Int], orientation: NDArray[np.integer]
) -> tuple[NDArray[_Int], NDArray[_Int]]:
    """Returns the upright (height, width) of images that are stored as `height` x `width`."""
    transposed = orientation >= _FIRST_TRANSPOSED
    return np.where(transposed, width, height), np.where(transposed, height, width)
