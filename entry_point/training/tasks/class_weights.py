"""`task.class_weights`: how much each class counts in the training loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from entry_point.config.config_errors import ConfigError
from entry_point.config.task_config import TaskConfig
from entry_point.data.sources.source import Source


def class_weights(
    config: TaskConfig,
    train: Source,
    automatic: Callable[[Tensor, int], Tensor],
    device: torch.device,
) -> Tensor | None:
    """float32 `(classes,)`, or None; `automatic` computes them from the labels for `auto`.

    Raises ConfigError if a list has another length.
    """
    if config.class_weights is None:
        return None
    count = len(train.classes)
    if config.class_weights == "auto":
        return automatic(train.labels, count).float().to(device)
    if len(config.class_weights) != count:
        order = f"{', '.join(train.classes[:5])}{', ...' if count > 5 else ''}"
        must = f"must have {count} numbers, one for each of {order}"
        raise ConfigError("task.class_weights", config.class_weights, must)
    return torch.tensor(config.class_weights, dtype=torch.float32, device=device)


def inverse_frequency(labels: Tensor, classes: int) -> Tensor:
    """images / (classes x images of the class), from class numbers `(N,)`.

    The images' mean weight is then 1. A class without images gets 0.
    """
    counts = labels.long().bincount(minlength=classes).double()
    weights = len(labels) / (classes * counts)
    return weights.where(counts > 0, 0.0)


def inverse_odds(labels: Tensor, _count: int) -> Tensor:
    """Images without the label / images with it, from labels `(N, count)` of 0 or 1.

    A label that no image has gets 1.
    """
    present = labels.double().sum(0)
    return ((len(labels) - present) / present).where(present > 0, 1.0)
