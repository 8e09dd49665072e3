"""Identifies the samples of a batch: the image of each, and its random draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from entry_point.data.plan.philox import Words

Ints = NDArray[np.int64]

_INDEX_BITS = 40
_INDEX = (1 << _INDEX_BITS) - 1
_VIEW_BITS = 32


@dataclass(frozen=True)
class Samples:
    """Identifies the random draws of N samples; each field is int64 (N,)."""

    epoch: int
    images: Ints
    """Number of the image in its source."""
    repeats: Ints
    """Number of times that the epoch has drawn the image before."""
    views: Ints
    """Number of the image's view; the views of an image follow each other."""

    @classmethod
    def of(cls, epoch: int, images: Ints, repeats: Ints | int = 0, views: int = 1) -> Samples:
        """Returns `views` samples of each of these images."""
        count = len(images)
        repeats = np.broadcast_to(np.asarray(repeats, np.int64), count)
        numbers = np.tile(np.arange(views), count)
        return cls(epoch, np.repeat(images, views), np.repeat(repeats, views), numbers)

    def __len__(self) -> int:
        return len(self.images)

    def counter(self, draws: Ints | int) -> Sequence[int | Words | Ints]:
        """Returns philox's counter for the draws numbered `draws`, which broadcast with (N,).

        The first view of several draws the same numbers as an only view.
        """
        return self.images, self.epoch, draws + (self.views << _VIEW_BITS), self.repeats


def rows(positions: Sequence[int], each: int) -> Ints:
    """Returns the positions of the samples of the images at `positions`, with `each` per image."""
    return np.add.outer(np.asarray(positions, np.int64) * each, np.arange(each)).reshape(-1)


def with_repeats(order: Ints) -> Ints:
    """Returns the images of an epoch, int64 (N,): the image's number in the low 40 bits, the number
    of its earlier draws above them."""
    by_image = np.argsort(order, kind="stable")
    first = np.searchsorted(order[by_image], order[by_image])
    repeats = np.empty_like(order)
    repeats[by_image] = np.arange(len(order)) - first
    return order | repeats << _INDEX_BITS


def split_repeats(request: Ints) -> tuple[Ints, Ints]:
    """Splits the results of `with_repeats`: returns images, and numbers of earlier draws."""
    return request & _INDEX, request >> _INDEX_BITS
