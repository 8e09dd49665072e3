"""Builds the model that `model.name` names, from scratch or from local weights, and its input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn

from entry_point.config.config_errors import ConfigError, did_you_mean, shown
from entry_point.config.resolve import TIMM, call, check_call, require_package, resolve
from entry_point.config.train_config import ModelConfig
from entry_point.training.dense_models import PyramidHead, segmentation_models
from entry_point.training.weights import load_weights, weights_file

_WITHOUT_WEIGHTS = {
    "weights": None,
    "weights_backbone": None,
    "pretrained": False,
    "checkpoint_path": "",
}
"""Arguments of a model's builder that name initial weights, each with its value for none."""


def build_model(
    config: ModelConfig,
    num_classes: int,
    channels: Path | None = None,
    image_size: int = 224,
    names: Sequence[str] = (),
) -> nn.Module:
    """Build the model `(N, 3, image_size, image_size) float -> (N, num_classes) logits`, or for
    segmentation `(N, num_classes, height, width)`.

    `names` are the names of the outputs, to compare with those stored with `model.weights`.

    Raises:
        ConfigError: there is no such model, it cannot take images of this size or one of
            `model.kwargs`, or `model.weights` is missing or does not fit.
    """
    if config.name.startswith(TIMM):
        build, named = timm_model(config.name, num_classes, image_size)
        if is_encoder := bool(config.kwargs.get("features_only")):
            named["feature_cls"] = "getter"  # the only class that keeps the names of the weights
        model = _construct(config, image_size, build, named)
        model = PyramidHead(model, num_classes) if is_encoder else model
    elif "." in config.name:
        own = resolve("model.name", config.name, {})
        model = call("model.kwargs", own, config.kwargs, num_classes=num_classes)
        if not isinstance(model, nn.Module):
            message = f"must return a torch.nn.Module, not {type(model).__name__}"
            raise ConfigError("model.name", config.name, message)
    else:
        options = _torchvision_options(config.name, image_size)
        named = {"weights": None, "num_classes": num_classes, **options}
        model = _construct(config, image_size, torchvision_builder(config.name), named)
    for buffer in model.buffers():  # torch cannot load values into results of meshgrid or expand
        buffer.data = buffer.contiguous()
    # A hook, because a wrapping module would rename the weights.
    model.register_forward_hook(partial(_take_logits, config.name))
    if config.weights is not None:
        path, without = weights_file(config, channels), replace(config, weights=None)
        larger = partial(build_model, without, num_classes + 1, image_size=image_size)
        plain = replace(without, kwargs={})
        classifier = partial(build_model, plain, num_classes + 1, image_size=image_size)
        known = names if len(names) == num_classes else ()
        load_weights(model, path, known, larger, classifier)
    return model


def build_again(config: ModelConfig, num_classes: int, image_size: int) -> nn.Module:
    """Returns a model to load trained weights into, without arguments that load other weights."""
    kwargs = {key: _WITHOUT_WEIGHTS.get(key, value) for key, value in config.kwargs.items()}
    without = replace(config, weights=None, kwargs=kwargs)
    return build_model(without, num_classes, image_size=image_size)


def require_model(config: ModelConfig, image_size: int = 224) -> None:
    """Raise ConfigError unless `model.name` names a model that takes `model.kwargs`.

    Libraries' builders pass arguments on, so these are checked by building on the meta device.
    """
    name = config.name
    if is_own(config):
        build = resolve("model.name", name, {})
        check_call("model.kwargs", build, config.kwargs, num_classes=2)
    elif config.kwargs:
        # Suppressed: errors of models that compute with their weights while they are built.
        with torch.device("meta"), suppress(RuntimeError, TypeError):
            build_model(replace(config, weights=None), 2, image_size=image_size)
    elif name.startswith(TIMM):
        require_timm_model(name)
    else:
        torchvision_builder(name)


def is_own(config: ModelConfig) -> bool:
    """Returns whether `model.name` is the dotted path of your own model."""
    return "." in config.name and not config.name.startswith(TIMM)


def _construct(
    config: ModelConfig, image_size: int, build: Callable[..., nn.Module], named: dict[str, Any]
) -> nn.Module:
    """Call a library's builder, whose signature does not show the arguments of its class."""
    try:
        return call("model.kwargs", build, config.kwargs, **named)
    except (AssertionError, TypeError, ValueError) as error:
        is_bug = isinstance(error, TypeError) and "unexpected keyword argument" not in str(error)
        if isinstance(error, ConfigError) or is_bug:
            raise
        given = f"data.image_size={image_size} model.kwargs={shown(config.kwargs)}"
        raise ConfigError("model.name", config.name, f"cannot take {given} ({error})") from error


def torchvision_builder(name: str) -> Callable[..., nn.Module]:
    """Returns the builder of a torchvision model. Raises ConfigError."""
    classifiers = torchvision.models.list_models(module=torchvision.models)
    names = [*classifiers, *segmentation_models()]
    if name not in names:
        raise ConfigError(
            "model.name",
            name,
            f"must be a classification or segmentation model of torchvision, timm/NAME "
            f"or package.function{did_you_mean(name, names)}",
        )
    builder: Callable[..., nn.Module] = torchvision.models.get_model_builder(name)
    return builder


def _torchvision_options(name: str, image_size: int) -> dict[str, Any]:
    """Returns arguments that some models need: the image size, no auxiliary classifiers, the input
    transform of the published weights, and no download."""
    if name in segmentation_models():
        return {"weights_backbone": None, "aux_loss": False}
    if name.startswith("vit_"):
        return {"image_size": image_size}
    if name == "maxvit_t":
        return {"input_size": (image_size, image_size)}
    if name in ("googlenet", "inception_v3"):
        return {"aux_logits": False, "transform_input": True, "init_weights": True}
    return {}


def _take_logits(name: str, model: nn.Module, _images: object, answer: Any) -> torch.Tensor:
    """Returns the logits in a model's answer, by the conventions of the libraries.

    Hugging Face's models and torchvision's GoogLeNet and Inception return them as `logits`, and
    torchvision's segmentation models as `out`. A model with `head_dist`, such as timm's distilled
    ones, returns a pair in training, and its mean in evaluation. Raises ConfigError for any other
    answer.
    """
    logits = getattr(answer, "logits", None)
    if isinstance(answer, torch.Tensor):
        logits = answer
    elif isinstance(answer, Mapping):
        logits = answer.get("logits", answer.get("out"))
    elif isinstance(answer, tuple) and len(answer) == 2 and hasattr(model, "head_dist"):
        logits = (answer[0] + answer[1]) / 2
    if not isinstance(logits, torch.Tensor):
        inside = f" of {', '.join(map(str, answer))}" if isinstance(answer, Mapping) else ""
        inside = f" of {len(answer)} items" if isinstance(answer, (tuple, list)) else inside
        message = f"returns a {type(answer).__name__}{inside}; return its logits alone, a tensor"
        raise ConfigError("model.name", name, message)
    return logits


def checkpoint_gradients(model: nn.Module, name: str) -> None:
    """Turn on timm's gradient checkpointing. Raises ConfigError for a model without it."""
    try:
        model.set_grad_checkpointing()  # type: ignore[operator]
    except (AttributeError, AssertionError) as error:
        message = (
            f"model.name={name} has no set_grad_checkpointing(), as timm's have; set it to false"
        )
        raise ConfigError("model.gradient_checkpointing", True, message) from error


def describe_parameters(model: nn.Module) -> str:
    """Returns "11,181,642 parameters", or "5,130 of 11,181,642 parameters train"."""
    every = sum(p.numel() for p in model.parameters())
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if trainable == every:
        return f"{every:,} parameters"
    return f"{trainable:,} of {every:,} parameters train"


def timm_model(
    name: str, num_classes: int, image_size: int
) -> tuple[Callable[..., nn.Module], dict[str, Any]]:
    """Returns timm's function that builds `name` without published weights, and its arguments.
    Raises ConfigError as `require_timm_model` does."""
    wanted = require_timm_model(name)
    import timm

    named: dict[str, Any] = {"pretrained": False, "num_classes": num_classes}
    # Only models whose weights depend on the image size take the argument.
    if timm.get_pretrained_cfg(wanted).fixed_input_size:
        named["img_size"] = image_size
    return partial(timm.create_model, wanted), named


def require_timm_model(name: str) -> str:
    """Returns timm's name of `timm/NAME`, which may end with the tag of published weights, as in
    `resnet18.a1_in1k`. Raises ConfigError if timm is not installed or has no such model."""
    require_package("model.name", name, "timm", "timm")
    import timm

    wanted = name.removeprefix(TIMM)
    architecture, _, tag = wanted.partition(".")
    published = timm.list_pretrained(f"{architecture}.*")
    if not timm.is_model(architecture) or (tag and wanted not in published):
        nearest = did_you_mean(wanted, [*published, *timm.list_models()])
        message = f"timm {timm.__version__} has no such model or weights{nearest}"
        raise ConfigError("model.name", name, message)
    return wanted


class Normalize(nn.Module):
    """`(N, 3, H, W)`, 0 to 255 -> float `(x / 255 - mean) / std`, channels_last.

    One multiply-add over rows of pixels: on a CPU, broadcasting over a dimension of three channels
    is several times slower. The result has `dtype`, to which autocast would convert it anyway, at
    an extra cost; None: the dtype of the buffers, in which it is computed.
    """

    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self._dtype = dtype
        mean_, std_ = torch.tensor(mean), torch.tensor(std)
        self.register_buffer("scale", 1 / (255 * std_))
        self.register_buffer("shift", -mean_ / std_)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pixels = images.to(self.scale.dtype).permute(0, 2, 3, 1)
        width = pixels.shape[2]
        rows = torch.addcmul(self.shift.repeat(width), pixels.flatten(2), self.scale.repeat(width))
        return rows.view(pixels.shape).permute(0, 3, 1, 2).to(self._dtype or rows.dtype)
