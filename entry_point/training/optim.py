"""Optimizer and learning-rate schedule from the `optim` config group."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from entry_point.config.train_config import OptimConfig


def build_optimizer(
    config: OptimConfig, model: nn.Module, device: torch.device
) -> torch.optim.Optimizer:
    """SGD or AdamW; no weight decay on biases and normalization weights.

    On a GPU, one kernel updates many weights.
    """
    # The rate is a float: as a tensor, each LambdaLR step would synchronize with the device.
    groups = list(_parameter_groups(model, config.weight_decay))
    fused = True if device.type == "cuda" else None
    if config.name == "sgd":
        momentum, nesterov = config.momentum, config.nesterov
        return torch.optim.SGD(groups, config.lr, momentum, nesterov=nesterov, fused=fused)
    return torch.optim.AdamW(groups, config.lr, (config.betas[0], config.betas[1]), fused=fused)


def _parameter_groups(model: nn.Module, weight_decay: float) -> Iterable[dict[str, object]]:
    """Vectors and scalars are biases and normalization weights: decaying them only hurts."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    yield {"params": [p for p in parameters if p.dim() > 1], "weight_decay": weight_decay}
    yield {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0}


def build_schedule(
    config: OptimConfig, optimizer: torch.optim.Optimizer, steps_per_epoch: int, epochs: int
) -> LambdaLR:
    """A schedule to step once per optimizer step."""
    return LambdaLR(optimizer, rate_factor(config, steps_per_epoch, epochs))


def rate_factor(config: OptimConfig, steps_per_epoch: int, epochs: int) -> Callable[[int], float]:
    """Step number -> share of the peak rate: linear warm-up, then cosine to zero, or steps."""
    total = steps_per_epoch * epochs
    warmup = round(min(config.warmup_epochs * steps_per_epoch, total))

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if config.schedule == "step":
            drops = step // max(1, round(min(config.step_epochs * steps_per_epoch, total + 1)))
            return config.step_factor**drops
        done = (step - warmup) / max(1, total - warmup)
        return 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))

    return factor
