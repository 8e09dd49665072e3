"""Builds torchvision's classification models or your own, from scratch or from local weights."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import torch
import torchvision
from hydra.utils import get_method
from torch import nn

from entry_point.config.config_errors import ConfigError, near
from entry_point.config.train_config import ModelConfig
from entry_point.training.tensor_file import DamagedFileError, load_tensors

logger = logging.getLogger(__name__)

WEIGHT_SUFFIXES = (".pt", ".pth")
# DenseNet's published weights say norm.1 where the model says norm1.
_DENSE_LAYER = re.compile(r"(?<=\.denselayer)(\d+\.(?:norm|conv))\.(?=[12]\.)")
_AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")


def build_model(
    config: ModelConfig, num_classes: int, channels: Path | None = None, image_size: int = 224
) -> nn.Module:
    """Build the model `(N, 3, image_size, image_size) float -> (N, num_classes) logits`.

    Raises:
        ConfigError: torchvision has no such classification model, the model cannot take images of
            this size, or `model.weights` is missing or does not fit.
    """
    model = (
        _custom(config.name, num_classes)
        if "." in config.name
        else _known(config, num_classes, image_size)
    )
    if config.weights is not None:
        _load_weights(model, find_weights(config.weights, channels), num_classes)
    return model


def _known(config: ModelConfig, num_classes: int, image_size: int) -> nn.Module:
    names = torchvision.models.list_models(module=torchvision.models)
    if config.name not in names:
        raise ConfigError(
            "model.name",
            config.name,
            f"must be a classification model of torchvision {torchvision.__version__}, or "
            f"package.function{near(config.name, names)}; torchvision has {', '.join(names)}",
        )
    options = _options(config.name, image_size)
    try:
        model: nn.Module = torchvision.models.get_model(
            config.name, weights=None, num_classes=num_classes, **options
        )
    except (AssertionError, ValueError) as error:
        raise ConfigError(
            "model.name", config.name, f"cannot take data.image_size={image_size} ({error})"
        ) from error
    return model


def _options(name: str, image_size: int) -> dict[str, Any]:
    """Arguments that some models need: the image size; no auxiliary classifiers; the input
    transform that the published weights expect."""
    if name.startswith("vit_"):
        return {"image_size": image_size}
    if name == "maxvit_t":
        return {"input_size": (image_size, image_size)}
    if name in ("googlenet", "inception_v3"):
        return {"aux_logits": False, "transform_input": True, "init_weights": True}
    return {}


def _custom(path: str, num_classes: int) -> nn.Module:
    try:
        build = get_method(path)
    except (ImportError, ValueError) as error:
        raise ConfigError("model.name", path, f"cannot be imported ({error})") from error
    model = build(num_classes=num_classes)
    if not isinstance(model, nn.Module):
        made = type(model).__name__
        raise ConfigError("model.name", path, f"must return a torch.nn.Module, not {made}")
    return model


def find_weights(weights: str, channels: Path | None) -> Path:
    """The file that `model.weights` means: a path, or the only weights file of a channel."""
    path = Path(weights)
    if path.is_file():
        return path
    folder = path if path.is_dir() else (channels or Path()) / weights
    found = sorted(p for p in folder.glob("*") if p.suffix in WEIGHT_SUFFIXES and p.is_file())
    if len(found) == 1:
        return found[0]
    patterns = " or ".join(f"*{suffix}" for suffix in WEIGHT_SUFFIXES)
    raise ConfigError(
        "model.weights",
        weights,
        f"must be a file, or a folder or channel with exactly one {patterns}; "
        f"found {len(found)} in {folder}",
    )


def _load_weights(model: nn.Module, path: Path, num_classes: int) -> None:
    """Load weights; a head of another size stays as initialized, all else must match."""
    state = _read_state_dict(path)
    own = model.state_dict()
    head = [key for key in own if key in state and own[key].shape != state[key].shape]
    for key in head:
        needed, found = own[key].shape, state[key].shape
        if (needed[:1], needed[1:]) != ((num_classes,), found[1:]):
            raise ConfigError(
                "model.weights",
                path,
                f"holds another model's weights; {key} has shape {tuple(found)}, and the model "
                f"needs {tuple(needed)}",
            )
    for key in head:
        del state[key]
    missing, unexpected = model.load_state_dict(state, strict=False)
    left = [key for key in missing if key not in head]
    if left or unexpected:
        raise ConfigError(
            "model.weights",
            path,
            f"does not fit the model; missing {left[:3]}, unexpected {unexpected[:3]}",
        )
    logger.info("weights from %s%s", path, f", except {', '.join(head)}" if head else "")


def _read_state_dict(path: Path) -> dict[str, torch.Tensor]:
    """The state dict, with the keys of today's torchvision models."""
    try:
        state = load_tensors(path)
    except DamagedFileError as error:
        must = f"must be a torch state dict ({error})"
        raise ConfigError("model.weights", path, must) from error
    state = state.get("model", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(
        isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in state.items()
    ):
        raise ConfigError("model.weights", path, "must be a torch state dict: names and tensors")
    return {
        _DENSE_LAYER.sub(r"\1", key): value
        for key, value in state.items()
        if not key.startswith(_AUXILIARY)
    }


def count_parameters(model: nn.Module) -> int:
    """The number of trainable parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
