"""The training losses that `task.loss` names, and `task.class_weights`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from entry_point.config.config_errors import ConfigError
from entry_point.config.resolve import resolve
from entry_point.config.task_config import TaskConfig
from entry_point.config.train_config import ModelConfig
from entry_point.data.sources.source import Source
from entry_point.job.text import counted

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> mean loss over the samples, a scalar."""


def choose_loss(config: TaskConfig, known: Mapping[str, Loss]) -> Loss:
    """Returns the loss that `task.loss` names, by default the first of `known`. Raises
    ConfigError."""
    name = config.loss or next(iter(known))
    loss: Loss = resolve("task.loss", name, known)
    if name not in known and config.class_weights is not None:
        message = f"task.loss={name} is your own, which gets no weights; set null"
        raise ConfigError("task.class_weights", config.class_weights, message)
    return loss


def cross_entropy(
    outputs: Tensor, targets: Tensor, *, weights: Tensor | None, smoothing: float
) -> Tensor:
    """Returns the cross-entropy for classes `(N,)`, or for blended ones `(N, classes)`.

    The mean is over samples. torch divides by the sum of the batch's weights instead: the loss then
    changes if a batch is computed in pieces or on several ranks.
    """
    if weights is None:
        return functional.cross_entropy(outputs, targets, label_smoothing=smoothing)
    return functional.cross_entropy(
        outputs, targets, weights, label_smoothing=smoothing, reduction="none"
    ).mean()


def focal(
    outputs: Tensor, targets: Tensor, *, weights: Tensor | None, smoothing: float, gamma: float
) -> Tensor:
    """Returns cross-entropy times (1 - probability)^gamma (Lin et al., arXiv 1708.02002).

    Takes the targets of `cross_entropy`, which it equals for gamma 0.
    """
    count = outputs.shape[1]
    if not targets.is_floating_point():
        targets = functional.one_hot(targets, count).to(outputs.dtype)
    targets = targets * (1 - smoothing) + smoothing / count
    logarithms = outputs.log_softmax(1)
    terms = -targets * _power(1 - logarithms.exp(), gamma) * logarithms
    return (terms if weights is None else terms * weights).sum(1).mean()


def binary_focal(
    outputs: Tensor, targets: Tensor, *, weights: Tensor | None, gamma: float
) -> Tensor:
    """Returns binary cross-entropy times (1 - probability of the target)^gamma.

    Targets are labels `(N, labels)`, each from 0 to 1; `weights` apply where a label is present.
    """
    losses = functional.binary_cross_entropy_with_logits(
        outputs, targets, pos_weight=weights, reduction="none"
    )
    probabilities = outputs.sigmoid()
    right = probabilities * targets + (1 - probabilities) * (1 - targets)
    return (_power(1 - right, gamma) * losses).mean()


def _power(missing: Tensor, gamma: float) -> Tensor:
    """Returns missing^gamma, whose gradient at 0 would be infinite for gamma below 1."""
    return missing.clamp(min=torch.finfo(missing.dtype).eps) ** gamma


def require_columns(outputs: Tensor, targets: Tensor, count: int, config: ModelConfig) -> None:
    """Raise ConfigError unless the model's outputs are `(N, count)`, a row for each target."""
    if outputs.shape[1:] != (count,):
        answer = ", ".join(["N", *map(str, outputs.shape[1:])])
        message = f"returns ({answer}), must return (N, {count}): use its argument num_classes"
        raise ConfigError("model.name", config.name, message)
    if len(outputs) != len(targets):
        message = (
            f"returns {counted(len(outputs), 'row')} for {counted(len(targets), 'image')}: it "
            "flattens images of another data.image_size; set that, or keep the first dimension, as "
            "flatten(1) does"
        )
        raise ConfigError("model.name", config.name, message)


def class_weights(
    config: TaskConfig,
    train: Source,
    automatic: Callable[[Tensor, int], Tensor],
    device: torch.device,
) -> Tensor | None:
    """Returns the weights, float32 `(classes,)`, or None. For `auto`, `automatic` computes them
    from the labels.

    Raises ConfigError for a list of another length.
    """
    if config.class_weights is None:
        return None
    count = len(train.classes)
    if config.class_weights == "auto":
        return automatic(train.labels, count).float().to(device)
    if len(config.class_weights) != count:
        order = f"{', '.join(train.classes[:5])}{', ...' if count > 5 else ''}"
        message = f"must have {counted(count, 'number')}, one for each of {order}"
        raise ConfigError("task.class_weights", config.class_weights, message)
    return torch.tensor(config.class_weights, dtype=torch.float32, device=device)


def inverse_frequency(labels: Tensor, classes: int) -> Tensor:
    """Returns images / (classes x images of the class), from class numbers `(N,)`.

    The mean weight of the images is then 1. A class without images gets 0.
    """
    counts = labels.long().bincount(minlength=classes).double()
    weights = len(labels) / (classes * counts)
    return weights.where(counts > 0, 0.0)


def inverse_odds(labels: Tensor, _count: int) -> Tensor:
    """Returns images without the label / images with it, from labels `(N, count)` of 0 or 1.

    A label that no image has gets 1.
    """
    present = labels.double().sum(0)
    return ((len(labels) - present) / present).where(present > 0, 1.0)
