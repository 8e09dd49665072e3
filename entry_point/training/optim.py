"""Optimizer and learning-rate schedule from the `optim` config group."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from entry_point.config.config_errors import ConfigError
from entry_point.config.resolve import call, resolve
from entry_point.config.train_config import OPTIMIZERS, OptimConfig


def build_optimizer(
    config: OptimConfig, model: nn.Module, device: torch.device
) -> torch.optim.Optimizer:
    """torch's optimizer or your own; no weight decay on biases and normalization weights.

    On a GPU, one kernel updates many weights.

    Raises:
        ConfigError: `optim.name` is no optimizer, or does not take `optim.kwargs`.
    """
    by_word = {each.lower(): each for each in dir(torch.optim)}
    known = {word: getattr(torch.optim, by_word[word]) for word in OPTIMIZERS}
    build = resolve("optim.name", config.name, known)
    # The rate is a float: as a tensor, each LambdaLR step would synchronize with the device.
    groups = list(_parameter_groups(model, config.weight_decay))
    settings = _own_settings(config) | _fused(build, config, device)
    try:
        optimizer = call("optim.kwargs", build, config.kwargs, groups, lr=config.lr, **settings)
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError("optim.name", config.name, f"cannot be built ({error})") from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        must = f"must return a torch.optim.Optimizer, not {type(optimizer).__name__}"
        raise ConfigError("optim.name", config.name, must)
    return optimizer


def _own_settings(config: OptimConfig) -> dict[str, Any]:
    """Arguments for which the config has keys, by optimizer."""
    keys = {"sgd": ("momentum", "nesterov"), "adamw": ("betas",)}.get(config.name, ())
    return {key: getattr(config, key) for key in keys}


def _fused(build: Any, config: OptimConfig, device: torch.device) -> dict[str, bool]:
    if device.type != "cuda" or "fused" in config.kwargs or config.name not in OPTIMIZERS:
        return {}
    return {"fused": True} if "fused" in inspect.signature(build).parameters else {}


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
    """Step number -> share of the peak rate: linear warm-up, then the shape of `optim.schedule`.

    Raises:
        ConfigError: your own schedule cannot be called, or does not return a number.
    """
    total = steps_per_epoch * epochs
    warmup = round(min(config.warmup_epochs * steps_per_epoch, total))
    drop_every = max(1, round(min(config.step_epochs * steps_per_epoch, total + 1)))

    def cosine(step: int) -> float:
        done = (step - warmup) / max(1, total - warmup)
        return 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))

    def drops(step: int) -> float:
        return config.step_factor ** (step // drop_every)

    known = {"cosine": cosine, "step": drops}
    after_warmup = known.get(config.schedule) or _own_shape(config, steps_per_epoch, epochs)

    def factor(step: int) -> float:
        return (step + 1) / warmup if step < warmup else after_warmup(step)

    return factor


def _own_shape(config: OptimConfig, steps_per_epoch: int, epochs: int) -> Callable[[int], float]:
    function = resolve("optim.schedule", config.schedule, {})

    def shape(step: int) -> float:
        epoch = step / steps_per_epoch
        value = call("optim.schedule_kwargs", function, config.schedule_kwargs, epoch, epochs)
        if not isinstance(value, float | int) or not math.isfinite(value):
            must = f"must return a finite number, not {value!r} at epoch {epoch:g}"
            raise ConfigError("optim.schedule", config.schedule, must)
        return value

    shape(0)  # an error ends the job before it trains
    return shape
