"""How often data.balance draws each image."""

from __future__ import annotations

import numpy as np
import torch

from entry_point.config.config_errors import ConfigError
from entry_point.data.plan.balance import Weights
from entry_point.data.sources.source import Source


def draw_weights(source: Source) -> Weights:
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
