"""data.balance: a training epoch that draws all classes equally often."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from entry_point.config.config_errors import ConfigError
from entry_point.data.plan.crops import Ints
from entry_point.data.plan.philox import stream_words, unit
from entry_point.data.sources.source import Source

_DRAW_STREAM = 2
_INDEX_BITS = 40
_INDEX = (1 << _INDEX_BITS) - 1
Weights = NDArray[np.float64]


def class_weights(source: Source) -> Weights:
    """How often to draw each image, relative to the others: float64 (N,).

    An image counts as the inverse of how many images share its class; with several labels, its
    rarest one. Having no label counts as a label. Raises ConfigError for numbers.
    """
    if source.kind == "numbers":
        must = "needs classes or labels, but the dataset has numbers; remove it"
        raise ConfigError("data.balance", "classes", must)
    if source.kind == "class":
        labels = source.labels.numpy()
        shares: Weights = 1 / np.maximum(np.bincount(labels, minlength=len(source.classes)), 1)
        return shares[labels]
    unlabeled = 1 - source.labels.amax(1, keepdim=True)
    held = torch.cat([source.labels, unlabeled], 1)
    rarest = held / held.sum(0, dtype=torch.float64).clamp(min=1)
    return rarest.amax(1).numpy()


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
