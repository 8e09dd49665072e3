"""Optimizer and learning-rate schedule from the `optim` config group."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Collection
from fnmatch import fnmatchcase
from numbers import Real
from typing import Any

import torch
from torch import nn

from entry_point.config.config_errors import ConfigError, did_you_mean, shown
from entry_point.config.resolve import call, resolve
from entry_point.config.train_config import OPTIMIZERS, OptimConfig


def build_optimizer(
    config: OptimConfig, model: nn.Module, device: torch.device
) -> torch.optim.Optimizer:
    """Returns torch's optimizer or your own, with the named groups of `parameter_groups`.

    On a GPU, torch's is fused: one kernel updates many weights.

    Raises:
        ConfigError: `optim.name` is not an optimizer, or does not take `optim.kwargs` or
            `optim.groups`.
    """
    build = resolve("optim.name", config.name, optimizers())
    # The learning rate is a float: with a tensor, each step of LambdaLR would wait for the device.
    groups = parameter_groups(config, model)
    kwargs = dict(config.kwargs)
    is_on_gpu = device.type == "cuda" and config.name in OPTIMIZERS
    if is_on_gpu and "fused" in inspect.signature(build).parameters:
        kwargs = {"fused": True, **kwargs}
    if config.name == "sgd" and not {"momentum", "nesterov"} & kwargs.keys():
        kwargs |= {"momentum": 0.9, "nesterov": True}
    try:
        optimizer = call("optim.kwargs", build, kwargs, groups, lr=config.lr)
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError("optim.name", config.name, f"cannot be built ({error})") from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        message = f"must return a torch.optim.Optimizer, not {type(optimizer).__name__}"
        raise ConfigError("optim.name", config.name, message)
    for pattern, arguments in config.groups.items():
        for name in arguments.keys() - optimizer.defaults.keys():
            key, taken = f"optim.groups.{pattern}.{name}", list(optimizer.defaults)
            message = f"no such argument of a group; {config.name} takes {', '.join(taken)}"
            raise ConfigError(key, arguments[name], message + did_you_mean(name, taken))
    return optimizer


def optimizers() -> dict[str, Any]:
    """Returns torch's optimizers by their names in `optim.name`."""
    by_word = {each.lower(): each for each in dir(torch.optim)}
    return {word: getattr(torch.optim, by_word[word]) for word in OPTIMIZERS}


_UNDECAYED = re.compile(
    r"(class|cls|dist|reg)_token|pos_embed(ding)?|relative_position_bias_table|(layer|logit)_scale"
)
"""Last parts of torchvision's and timm's names of parameters that are not weight matrices."""


def parameter_groups(config: OptimConfig, model: nn.Module) -> list[dict[str, Any]]:
    """Returns the trainable parameters in groups for torch's optimizers; those of `optim.groups`
    come last.

    Freezes the groups with `lr: 0`. A group is `{"name", "params": [(name, parameter),
    ...], "weight_decay", ...}`. Its name is its pattern, `*` for parameters that none matches, with
    ` undecayed` for those without weight decay: vectors and scalars (biases, normalization
    weights), position embeddings, class tokens, bias tables, layer scales, and what the model's
    `no_weight_decay()` lists, as timm's models do.

    Raises:
        ConfigError: a pattern of `optim.groups` matches no trainable parameter, or all are frozen.
    """
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    listed: Collection[str] = getattr(model, "no_weight_decay", tuple)()
    patterns = [*(pattern for pattern in config.groups if pattern != "*"), "*"]
    members: dict[tuple[str, bool], list[tuple[str, nn.Parameter]]] = {
        (pattern, decays): [] for pattern in ("*", *config.groups) for decays in (True, False)
    }
    for name, parameter in trainable:
        pattern = next(pattern for pattern in patterns if fnmatchcase(name, pattern))
        is_listed = any(fnmatchcase(name, each) for each in listed)
        is_known = _UNDECAYED.fullmatch(name.rpartition(".")[2])
        decays = parameter.dim() > 1 and not is_listed and not is_known
        members[pattern, decays].append((name, parameter))
    for pattern in config.groups:
        if not members[pattern, True] and not members[pattern, False]:
            names = [name for name, _ in members["*", True] + members["*", False]]
            some = ", ".join(names if len(names) < 5 else [*names[:2], "...", *names[-2:]])
            message = f"matches none of the parameters {some}"
            raise ConfigError("optim.groups", pattern, message)
    frozen = [pattern for pattern, arguments in config.groups.items() if arguments.get("lr") == 0]
    for pattern in frozen:
        for decays in (True, False):
            for _, parameter in members.pop((pattern, decays)):
                parameter.requires_grad_(False)
    if not any(members.values()):
        raise ConfigError("optim.groups", message="freezes all parameters; leave some to train")
    return [
        {
            "name": pattern if decays else f"{pattern} undecayed",
            "params": parameters,
            "weight_decay": config.weight_decay if decays else 0.0,
            **config.groups.get(pattern, {}),
        }
        for (pattern, decays), parameters in members.items()
        if parameters
    ]


def rate_factor(config: OptimConfig, steps_per_epoch: int, epochs: int) -> Callable[[int], float]:
    """Returns the schedule: step number -> share of the peak rate. It warms up linearly, then
    follows `optim.schedule`.

    Raises:
        ConfigError: your own schedule fails for an epoch of the run, or returns no number of at
            least 0.
    """
    total = steps_per_epoch * epochs
    warmup = round(min(config.warmup_epochs * steps_per_epoch, total))

    def cosine(step: int) -> float:
        done = (step - warmup) / max(1, total - warmup)
        return 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))

    if config.schedule == "cosine":
        after_warmup: Callable[[int], float] = cosine
    else:
        after_warmup = _shape(config, steps_per_epoch, epochs)

    def factor(step: int) -> float:
        step = min(step, total - 1)  # LambdaLR also asks for the step after the last
        return (step + 1) / warmup if step < warmup else after_warmup(step)

    return factor


def drops(epoch: float, _epochs: int, every: float = 30, factor: float = 0.1) -> float:
    """`optim.schedule=step`: multiplies the rate by `factor` after each `every` epochs."""
    return factor ** math.floor(epoch / every + 1e-9)


SCHEDULES = {"step": drops}
"""Schedules by their names in `optim.schedule`, without `cosine`."""


def _shape(config: OptimConfig, steps_per_epoch: int, epochs: int) -> Callable[[int], float]:
    function = resolve("optim.schedule", config.schedule, SCHEDULES)

    def shape(step: int) -> float:
        epoch, kwargs = step / steps_per_epoch, config.schedule_kwargs
        try:
            value = call("optim.schedule_kwargs", function, kwargs, epoch, epochs)
        except (TypeError, ValueError, ArithmeticError, LookupError) as error:
            if isinstance(error, ConfigError):
                raise
            message = f"cannot be computed at epoch {epoch:g} ({error}); correct it, or "
            message += f"optim.schedule_kwargs={shown(kwargs)}"
            raise ConfigError("optim.schedule", config.schedule, message) from error
        if not isinstance(value, Real) or not 0 <= float(value) < math.inf:
            message = f"must return a number from 0 on, not {value!r} at epoch {epoch:g}"
            raise ConfigError("optim.schedule", config.schedule, message)
        return float(value)  # `weights_only=True` would not load a NumPy scalar

    for epoch in range(epochs):  # so that an error in a late epoch ends the job before training
        shape(epoch * steps_per_epoch)
    shape(epochs * steps_per_epoch - 1)
    return shape
