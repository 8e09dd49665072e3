"""Finds files of weights: what `model.weights` means, and what torchvision and timm publish.

`make weights` fetches published weights on the host; a job downloads nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torchvision
from safetensors.torch import save_file

from entry_point.config.config_errors import ConfigError
from entry_point.config.resolve import TIMM
from entry_point.config.train_config import PRETRAINED, ModelConfig
from entry_point.job.whole_file import replacing

SAFETENSORS = ".safetensors"
WEIGHT_SUFFIXES = (".pt", ".pth", ".ckpt", SAFETENSORS)


@dataclass(frozen=True)
class Published:
    """The default weights of a model."""

    file: str
    """Below the folder."""
    url: str
    fetch: Callable[[Path], object]
    """Writes the file of this path. Raises OSError and RuntimeError."""
    data: dict[str, Any]
    """What the weights expect: the settings `mean` and `std` of `data`."""


def published(name: str) -> Published | None:
    """Returns the weights of `model.name`, which exists; None if it is your own, or has none."""
    if name.startswith(TIMM):
        return _of_timm(name.removeprefix(TIMM))
    if "." in name:
        return None
    weights = torchvision.models.get_model_weights(name)["DEFAULT"]

    def fetch(file: Path) -> None:
        weights.get_state_dict(model_dir=str(file.parent), check_hash=True, weights_only=True)

    transforms = weights.transforms()
    expected = {"mean": transforms.mean, "std": transforms.std}
    return Published(Path(weights.url).name, weights.url, fetch, expected)


def _of_timm(name: str) -> Published | None:
    import timm
    from huggingface_hub import hf_hub_url

    config = timm.get_pretrained_cfg(name)
    if not config.has_weights:
        return None
    file = f"{TIMM}{config.architecture}.{config.tag}.safetensors"
    url = config.url
    if config.hf_hub_id:
        url = hf_hub_url(config.hf_hub_id, config.hf_hub_filename or "model.safetensors")
    expected = {"mean": config.mean, "std": config.std}
    return Published(file, url, partial(_fetch_of_timm, name), expected)


def _fetch_of_timm(name: str, file: Path) -> None:
    """Save what timm loads: some of its files need the conversion that their model knows."""
    import timm

    state = timm.create_model(name, pretrained=True).state_dict()
    with replacing(file) as temporary:
        save_file({key: value.contiguous() for key, value in state.items()}, temporary)


def weights_file(config: ModelConfig, channels: Path | None) -> Path:
    """Returns the file that `model.weights` means: what `make weights` fetched for `model.name`, a
    path, or the only weights file of a channel.

    Raises ConfigError if there is none.
    """
    weights, inputs = str(config.weights), channels or Path()
    if weights == PRETRAINED and (found := published(config.name)) is not None:
        for folder in (Path(PRETRAINED), inputs / PRETRAINED):
            if (folder / found.file).is_file():
                return folder / found.file
        message = (
            f"there is no {found.file} in the folder or channel {PRETRAINED}; run "
            f"`make weights ARGS={config.name}` on a machine with a network"
        )
        raise ConfigError("model.weights", PRETRAINED, message)
    path = Path(weights)
    if path.is_file():
        return path
    folder = path if path.is_dir() else inputs / weights
    files = sorted(p for p in folder.glob("*") if p.suffix in WEIGHT_SUFFIXES and p.is_file())
    if len(files) != 1:
        message = (
            f"must be a file, or a folder or channel with exactly one "
            f"{' or '.join(f'*{suffix}' for suffix in WEIGHT_SUFFIXES)}; "
            f"found {len(files)} in {folder}"
        )
        raise ConfigError("model.weights", weights, message)
    return files[0]
