"""Reads the weights that a model starts from: a file that is already here."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from entry_point.config.config_errors import ConfigError
from entry_point.training.tensor_file import DamagedFileError, load_tensors

logger = logging.getLogger(__name__)

SAFETENSORS = ".safetensors"
WEIGHT_SUFFIXES = (".pt", ".pth", SAFETENSORS)
# Training programs wrap their state dict in one of these.
_WRAPPERS = ("model", "state_dict")
# What DistributedDataParallel and torch.compile put before each name.
_PREFIXES = ("module.", "_orig_mod.")
# DenseNet's published weights say norm.1 where the model says norm1.
_DENSE_LAYER = re.compile(r"(?<=\.denselayer)(\d+\.(?:norm|conv))\.(?=[12]\.)")
_AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")


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


def load_weights(model: nn.Module, path: Path, num_classes: int) -> None:
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
        state = _load_safetensors(path) if path.suffix == SAFETENSORS else load_tensors(path)
    except DamagedFileError as error:
        kind = "a state dict, as torch.save(model.state_dict(), FILE) writes it"
        kind = "a safetensors file" if path.suffix == SAFETENSORS else kind
        raise ConfigError("model.weights", path, f"must be {kind} ({error})") from error
    for wrapper in _WRAPPERS:
        state = state.get(wrapper, state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(
        isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in state.items()
    ):
        raise ConfigError("model.weights", path, "must be a torch state dict: names and tensors")
    for prefix in _PREFIXES:
        if all(key.startswith(prefix) for key in state):
            state = {key.removeprefix(prefix): value for key, value in state.items()}
    return {
        _DENSE_LAYER.sub(r"\1", key): value
        for key, value in state.items()
        if not key.startswith(_AUXILIARY)
    }


def _load_safetensors(path: Path) -> Any:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise DamagedFileError(str(error).partition("\n")[0]) from error
