"""data.balance: a training epoch that draws all classes equally often."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from entry_point.data.plan.philox import stream_words, unit
from entry_point.data.plan.samples import Ints

_DRAW_STREAM = 2
Weights = NDArray[np.float64]
"""How often to draw each sample, relative to the others."""


def draw(weights: Weights, seed: int, epoch: int) -> Ints:
    """An epoch's images, int64 (N,), drawn with replacement.

    The image at each position is a function of (seed, epoch, position).
    """
    ends = np.cumsum(weights)
    chances = unit(stream_words((seed, _DRAW_STREAM), epoch, 0, len(weights)))
    return np.minimum(np.searchsorted(ends, chances * ends[-1], side="right"), len(weights) - 1)
