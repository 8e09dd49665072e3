"""Computes statistics of a dataset: images per class and split, sizes, formats, and pixels."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from entry_point.config.config_errors import shown
from entry_point.data.errors import DataError
from entry_point.data.plan.samples import Ints
from entry_point.data.sources.dataset import Dataset, gap_lines, images_per_class
from entry_point.data.sources.source import Source
from entry_point.job.program import ReadError
from entry_point.job.text import aligned, counted, printable

_SIDE = 128
"""About as many pixels are sampled along the shorter side of a larger image, evenly spaced."""
_LISTED = 30
"""Most classes to list, from the one with the fewest images."""


def image_statistics(
    pixels: NDArray[np.uint8], upright: tuple[Ints, Ints], is_jpeg: bool
) -> NDArray[np.float64]:
    """Returns the statistics of an image (height, width, 3), float64 (9,): whether it is a JPEG,
    its upright height and width, and the mean of each color and of its square, on the scale of
    0 to 1."""
    step = max(1, min(pixels.shape[:2]) // _SIDE)
    part = pixels[::step, ::step].reshape(-1, 3) / 255
    return np.concatenate([[is_jpeg], *upright, part.mean(0), (part**2).mean(0)])


def lines_of(looks: array[float]) -> Iterator[str]:
    """Yields lines about sizes, formats and pixels; each image has the same weight.

    `looks` holds the results of `image_statistics`, one after another.
    """
    if not looks:
        return
    images = np.frombuffer(looks).reshape(-1, 9)
    sizes = np.quantile(images[:, 2:0:-1], (0, 0.5, 1), axis=0)
    least, median, most = (f"{width:.0f}x{height:.0f}" for width, height in sizes)
    yield f"width x height: median {median}, from {least} to {most}"
    others = len(images) - int(images[:, 0].sum())
    of = f"{others} of {counted(len(images), 'image')}"
    yield f"not JPEGs: {of} ({100 * others / len(images):.1f} %)"
    mean, squares = images[:, 3:].mean(0).reshape(2, 3)
    std = np.sqrt(np.maximum(squares - mean**2, 0))  # rounding may make it negative
    rounded = (shown(row.round(4).tolist()) for row in (mean, std))
    yield "pixels: data.mean={} data.std={}".format(*rounded)


def class_lines(dataset: Dataset) -> Iterator[str]:
    """Yields a table of the images per class or label, with a column for each split that can be
    opened, then the lines of `gap_lines`."""
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
