"""What a dataset is like: images per class and split, sizes, formats, and pixels."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from entry_point.config.config_errors import shown
from entry_point.data.errors import DataError
from entry_point.data.sources.dataset import Dataset, gap_lines, images_per_class
from entry_point.data.sources.source import Source
from entry_point.job.program import ReadError, aligned, counted, printable

_SIDE = 128
"""Of a larger image, only every n-th row and column counts, about this many."""
_LISTED = 30
"""Classes to list: those with the fewest images."""


@dataclass(frozen=True)
class Look:
    """What one image adds."""

    is_jpeg: bool
    height: int
    width: int
    moments: NDArray[np.float64]
    """(2, 3): the mean of red, green and blue on the 0 to 1 scale, and of their squares."""


def look(pixels: NDArray[np.uint8], is_jpeg: bool) -> Look:
    """Returns the statistics of an image (height, width, 3)."""
    height, width, _ = pixels.shape
    step = max(1, min(height, width) // _SIDE)
    part = pixels[::step, ::step].reshape(-1, 3) / 255
    return Look(is_jpeg, height, width, np.stack([part.mean(0), (part**2).mean(0)]))


@dataclass
class Statistics:
    """Adds up the images of a dataset, each with the same weight."""

    widths: array[int] = field(default_factory=partial(array, "I"))
    heights: array[int] = field(default_factory=partial(array, "I"))
    jpegs: int = 0
    moments: NDArray[np.float64] = field(default_factory=lambda: np.zeros((2, 3)))

    def add(self, image: Look) -> None:
        self.widths.append(image.width)
        self.heights.append(image.height)
        self.jpegs += image.is_jpeg
        self.moments += image.moments

    def lines(self) -> Iterator[str]:
        """Yields the sizes, formats and pixels; nothing without an image."""
        if not (count := len(self.widths)):
            return
        sides = np.stack([self.widths, self.heights])
        least, median, most = (
            f"{width:.0f}x{height:.0f}" for width, height in np.quantile(sides, (0, 0.5, 1), axis=1)
        )
        yield f"width x height: median {median}, from {least} to {most}"
        others = count - self.jpegs
        yield f"not JPEGs: {others} of {counted(count, 'image')} ({100 * others / count:.1f} %)"
        mean, squares = self.moments / count
        std = np.sqrt(np.maximum(squares - mean**2, 0))  # rounding makes it negative
        rows = {"mean": mean, "std": std}
        of = [f"data.{name}={shown(row.round(4).tolist())}" for name, row in rows.items()]
        yield f"pixels: {' '.join(of)}"


def class_lines(dataset: Dataset) -> Iterator[str]:
    """Yields a table: the images of each class, or with each label, in each split that can be
    opened; and the lines of `gap_lines`."""
    splits: dict[str, Source] = {}
    for split in dataset.splits:
        with suppress(DataError, OSError, ReadError):
            splits[split] = dataset.source(split)
    if not splits or any(source.kind not in ("class", "labels") for source in splits.values()):
        return
    classes = next(iter(splits.values())).classes
    counts = np.stack([images_per_class(source) for source in splits.values()], axis=1)
    order = np.lexsort((np.arange(len(classes)), counts.sum(1)))
    rows = [[printable(classes[i]), *map(str, counts[i])] for i in order[:_LISTED]]
    yield from aligned([["images of", *splits], *rows]).splitlines()
    if len(classes) > _LISTED:
        yield f"... and {counted(len(classes) - _LISTED, 'class')} with as many images or more"
    yield from gap_lines(splits)
