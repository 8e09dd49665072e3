"""data.balance: a training epoch that draws all classes equally often."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from entry_point.data.plan.crops import Ints
from entry_point.data.plan.philox import stream_words, unit

_DRAW_STREAM = 2
_INDEX_BITS = 40
_INDEX = (1 << _INDEX_BITS) - 1
Weights = NDArray[np.float64]
"""How often to draw each sample, relative to the others."""


def draw(weights: Weights, seed: int, epoch: int) -> Ints:
    """An epoch's images, int64 (N,), drawn with replacement.

    The image at each position is a function of (seed, epoch, position).
    """
    ends = np.cumsum(weights)
    chances = unit(stream_words((seed, _DRAW_STREAM), epoch, 0, len(weights)))
    return np.minimum(np.searchsorted(ends, chances * ends[-1], side="right"), len(weights) - 1)


def with_repeats(order: Ints) -> Ints:
    """The images of an epoch, and above bit 40 how often each was drawn before: int64 (N,)."""
    by_image = np.argsort(order, kind="stable")
    first = np.searchsorted(order[by_image], order[by_image])
    repeats = np.empty_like(order)
    repeats[by_image] = np.arange(len(order)) - first
    return order | repeats << _INDEX_BITS


def split_repeats(samples: Ints) -> tuple[Ints, Ints | None]:
    """The image of each sample, and how often it was drawn before; None if never."""
    repeats = samples >> _INDEX_BITS
    return (samples & _INDEX, repeats) if repeats.any() else (samples, None)
