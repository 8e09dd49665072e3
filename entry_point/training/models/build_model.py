"""Builds the model that `model.name` names, from scratch or from local weights."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torchvision
from torch import nn

from entry_point.config.config_errors import ConfigError, near
from entry_point.config.resolve import TIMM, call, resolve
from entry_point.config.train_config import ModelConfig
from entry_point.training.models.model_weights import find_weights, load_weights
from entry_point.training.models.timm_models import timm_model

_UNKNOWN_ARGUMENT = re.compile(r"unexpected keyword argument '(\w+)'")


def build_model(
    config: ModelConfig, num_classes: int, channels: Path | None = None, image_size: int = 224
) -> nn.Module:
    """Build the model `(N, 3, image_size, image_size) float -> (N, num_classes) logits`.

    Raises:
        ConfigError: there is no such model, it cannot take images of this size or one of
            `model.kwargs`, or `model.weights` is missing or does not fit.
    """
    if config.name.startswith(TIMM):
        model = _construct(config, image_size, *timm_model(config.name, num_classes, image_size))
    elif "." in config.name:
        model = _own(config, num_classes)
    else:
        options = _torchvision_options(config.name, image_size)
        named = {"weights": None, "num_classes": num_classes, **options}
        model = _construct(config, image_size, torchvision_builder(config.name), named)
    if config.weights is not None:
        load_weights(model, find_weights(config.weights, channels), num_classes)
    return model


def _construct(
    config: ModelConfig, image_size: int, build: Callable[..., nn.Module], named: dict[str, Any]
) -> nn.Module:
    """Call a library's builder, which passes its arguments on to a class that it does not show."""
    try:
        return call("model.kwargs", build, config.kwargs, **named)
    except ConfigError:
        raise
    except TypeError as error:
        unknown = _UNKNOWN_ARGUMENT.search(str(error))
        if unknown is None or unknown[1] not in config.kwargs:
            raise
        name = unknown[1]
        must = f"no such argument of {config.name}"
        raise ConfigError(f"model.kwargs.{name}", config.kwargs[name], must) from error
    except (AssertionError, ValueError) as error:
        given = f"data.image_size={image_size}{' and model.kwargs' if config.kwargs else ''}"
        raise ConfigError("model.name", config.name, f"cannot take {given} ({error})") from error


def torchvision_builder(name: str) -> Callable[..., nn.Module]:
    """The function of a classification model of torchvision. Raises ConfigError."""
    names = torchvision.models.list_models(module=torchvision.models)
    if name not in names:
        raise ConfigError(
            "model.name",
            name,
            f"must be a classification model of torchvision, timm/NAME "
            f"or package.function{near(name, names)}",
        )
    builder: Callable[..., nn.Module] = torchvision.models.get_model_builder(name)
    return builder


def _torchvision_options(name: str, image_size: int) -> dict[str, Any]:
    """Arguments that some models need: the image size; no auxiliary classifiers; the input
    transform that the published weights expect."""
    if name.startswith("vit_"):
        return {"image_size": image_size}
    if name == "maxvit_t":
        return {"input_size": (image_size, image_size)}
    if name in ("googlenet", "inception_v3"):
        return {"aux_logits": False, "transform_input": True, "init_weights": True}
    return {}


def _own(config: ModelConfig, num_classes: int) -> nn.Module:
    build = resolve("model.name", config.name, {})
    model: object = call("model.kwargs", build, config.kwargs, num_classes=num_classes)
    if not isinstance(model, nn.Module):
        must = f"must return a torch.nn.Module, not {type(model).__name__}"
        raise ConfigError("model.name", config.name, must)
    return model


def checkpoint_gradients(model: nn.Module, name: str) -> None:
    """Have timm's method trade compute for memory. Raises ConfigError for a model without it."""
    try:
        model.set_grad_checkpointing()  # type: ignore[operator]
    except (AttributeError, AssertionError) as error:
        must = f"model.name={name} has no set_grad_checkpointing(), as timm's have; set it to false"
        raise ConfigError("model.gradient_checkpointing", True, must) from error


def count_parameters(model: nn.Module) -> int:
    """The number of trainable parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
