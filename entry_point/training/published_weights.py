"""The weights that torchvision and timm publish. `make weights` fetches them on the host; a job
downloads nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torchvision
from safetensors.torch import save_file

from entry_point.config.resolve import TIMM
from entry_point.job.whole_file import replacing

SAFETENSORS = ".safetensors"


@dataclass(frozen=True)
class Published:
    """The default weights of a model."""

    file: str
    """Path of the file in the folder of weights."""
    url: str
    fetch: Callable[[Path], object]
    """Writes the file to a path. Raises OSError and RuntimeError."""
    data: dict[str, Any]
    """The settings `mean` and `std` of `data` that the weights expect."""


def published(name: str) -> Published | None:
    """Returns the published weights of an existing model; None for your own, or if it has none."""
    if name.startswith(TIMM):
        return _published_by_timm(name.removeprefix(TIMM))
    if "." in name:
        return None
    weights = torchvision.models.get_model_weights(name)["DEFAULT"]

    def fetch(file: Path) -> None:
        weights.get_state_dict(model_dir=str(file.parent), check_hash=True, weights_only=True)

    pixels = weights.transforms()
    expected = {"mean": pixels.mean, "std": pixels.std}
    return Published(Path(weights.url).name, weights.url, fetch, expected)


def _published_by_timm(name: str) -> Published | None:
    import timm
    from huggingface_hub import hf_hub_url

    config = timm.get_pretrained_cfg(name)
    if not config.has_weights:
        return None

    def fetch(file: Path) -> None:
        # Not the published file: timm converts some of them while loading.
        state = timm.create_model(name, pretrained=True).state_dict()
        with replacing(file) as temporary:
            save_file({key: value.contiguous() for key, value in state.items()}, temporary)

    url = config.url
    if config.hf_hub_id:
        url = hf_hub_url(config.hf_hub_id, config.hf_hub_filename or f"model{SAFETENSORS}")
    file = f"{TIMM}{config.architecture}.{config.tag}{SAFETENSORS}"
    return Published(file, url, fetch, {"mean": config.mean, "std": config.std})
