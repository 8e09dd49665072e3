"""Any classification model of torchvision, from scratch or from a local state dict."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import torchvision
from hydra.utils import get_method
from torch import nn

from entry_point.config.config_errors import ConfigError, near
from entry_point.config.train_config import ModelConfig

logger = logging.getLogger(__name__)

WEIGHT_SUFFIXES = (".pt", ".pth")
# DenseNet's published files name norm.1 what the model names norm1.
_DENSE_LAYER = re.compile(r"(?<=\.denselayer)(\d+\.(?:norm|conv))\.(?=[12]\.)")
_ADDITIONAL = ("aux1.", "aux2.", "AuxLogits.")


def build_model(
    config: ModelConfig, num_classes: int, channels: Path | None = None, image_size: int = 224
) -> nn.Module:
    """Build the model `(N, 3, image_size, image_size) float -> (N, num_classes) logits`.

    Raises:
        ConfigError: torchvision has no classification model of that name, or none of it for such
            images, or `model.weights` is not there or does not fit.
    """
    model = (
        _own(config.name, num_classes)
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
            f"model.name={config.name}: torchvision {torchvision.__version__} has no such "
            f"classification model{near(config.name, names)}; it has {', '.join(names)}"
        )
    options = _options(config.name, image_size)
    try:
        model: nn.Module = torchvision.models.get_model(
            config.name, weights=None, num_classes=num_classes, **options
        )
    except (AssertionError, ValueError) as error:
        raise ConfigError(
            f"model.name={config.name}: not with data.image_size={image_size} ({error})"
        ) from error
    return model


def _options(name: str, image_size: int) -> dict[str, Any]:
    """What some of torchvision's models want to be told: the images' size; to go without the
    additional classifiers of their papers; to take the input that their published weights do."""
    if name.startswith("vit_"):
        return {"image_size": image_size}
    if name == "maxvit_t":
        return {"input_size": (image_size, image_size)}
    if name in ("googlenet", "inception_v3"):
        return {"aux_logits": False, "transform_input": True, "init_weights": True}
    return {}


def _own(path: str, num_classes: int) -> nn.Module:
    try:
        build = get_method(path)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"model.name={path}: {error}") from error
    model = build(num_classes=num_classes)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model.name={path}: made a {type(model).__name__}, not a torch Module")
    return model


def find_weights(weights: str, channels: Path | None) -> Path:
    """The file that `model.weights` means: a path, or the only weights file of a channel."""
    path = Path(weights)
    if path.is_file():
        return path
    folder = path if path.is_dir() else (channels or Path()) / weights
    found = sorted(p for p in folder.glob("*") if p.suffix in WEIGHT_SUFFIXES)
    if len(found) == 1:
        return found[0]
    raise ConfigError(
        f"model.weights={weights}: must be a file, or a folder or channel with exactly one of "
        f"{', '.join('*' + s for s in WEIGHT_SUFFIXES)}; found {len(found)} in {folder}"
    )


def _load_weights(model: nn.Module, path: Path, num_classes: int) -> None:
    """Load what fits; a classifier of another size stays as initialised, all else must match."""
    state = _read_state_dict(path)
    own = model.state_dict()
    head = [key for key in own if key in state and own[key].shape != state[key].shape]
    for key in head:
        ours, theirs = own[key].shape, state[key].shape
        if (ours[:1], ours[1:]) != ((num_classes,), theirs[1:]):
            raise ConfigError(
                f"model.weights={path}: these are weights of another model; {key} is "
                f"{tuple(theirs)}, here {tuple(ours)}"
            )
    for key in head:
        del state[key]
    missing, unexpected = model.load_state_dict(state, strict=False)
    left = [key for key in missing if key not in head]
    if left or unexpected:
        raise ConfigError(
            f"model.weights={path}: does not fit the model; missing {left[:3]}, "
            f"unexpected {unexpected[:3]}"
        )
    logger.info("weights from %s%s", path, f", except {', '.join(head)}" if head else "")


def _read_state_dict(path: Path) -> dict[str, torch.Tensor]:
    """With the keys that torchvision's models have today."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, ValueError, EOFError, UnpicklingError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"model.weights={path}: is no state dict of torch ({reason})") from error
    state = state.get("model", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(v, torch.Tensor) for v in state.values()):
        raise ConfigError(f"model.weights={path}: must hold a state dict: names and tensors")
    return {
        _DENSE_LAYER.sub(r"\1", key): value
        for key, value in state.items()
        if not key.startswith(_ADDITIONAL)
    }


def count_parameters(model: nn.Module) -> int:
    """Number of trainable values."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
