"""data.balance: a training epoch that draws all classes equally often."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from entry_point.config.config_errors import ConfigError
from entry_point.data.plan.philox import stream_words, unit
from entry_point.data.plan.samples import Ints

_DRAW_STREAM = 2
Weights = NDArray[np.float64]
"""How often to draw each sample, relative to the others."""


def draw_weights(kind: str, labels: Tensor, classes: int) -> Weights:
    """How often to draw each image, relative to the others: float64 (N,).

    `kind` and `labels` are those of a source. An image counts as the inverse of how many images
    share its class; with several labels, its rarest one. Having no label counts as a label. Raises
    ConfigError for numbers.
    """
    if kind == "numbers":
        must = "needs classes or labels, but the dataset has numbers; remove it"
        raise ConfigError("data.balance", "classes", must)
    if kind == "class":
        numbers = labels.numpy()
        shares: Weights = 1 / np.maximum(np.bincount(numbers, minlength=classes), 1)
        return shares[numbers]
    unlabeled = 1 - labels.amax(1, keepdim=True)
    held = torch.cat([labels, unlabeled], 1)
    rarest = held / held.sum(0, dtype=torch.float64).clamp(min=1)
    return rarest.amax(1).numpy()


def draw(weights: Weights, seed: int, epoch: int) -> Ints:
    """An epoch's images, int64 (N,), drawn with replacement.

    The image at each position is a function of (seed, epoch, position).
    """
    ends = np.cumsum(weights)
    chances = unit(stream_words((seed, _DRAW_STREAM), epoch, 0, len(weights)))
    return np.minimum(np.searchsorted(ends, chances * ends[-1], side="right"), len(weights) - 1)
