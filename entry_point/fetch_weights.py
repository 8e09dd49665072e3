"""Downloads published weights: `python -m entry_point.fetch_weights model.name=NAME output=FILE`.

For a machine with a network; a job gets the file as `model.weights` and downloads nothing.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import torchvision
from safetensors.torch import save_file
from torch import nn

from entry_point.config.compose import load_config
from entry_point.config.config_errors import ConfigError, near, shown
from entry_point.config.fetch_config import FetchConfig
from entry_point.config.resolve import TIMM
from entry_point.contract import exit_codes
from entry_point.contract.program import run_program
from entry_point.contract.user_error import UserError
from entry_point.contract.whole_file import replacing
from entry_point.large_imports import end_process
from entry_point.training.models.model_weights import SAFETENSORS
from entry_point.training.models.timm_models import require_timm_model
from entry_point.training.tensor_file import save_tensors

log = logging.getLogger("fetch_weights")

PATIENCE_S = 10.0


class DownloadError(UserError):
    """The weights could not be downloaded."""


@dataclass(frozen=True)
class Published:
    """A model with its published weights, and the input that they were trained on."""

    model: nn.Module
    size: int
    resize: int
    """The shorter side in pixels, before the center of `size` pixels is cropped to validate."""
    mean: Sequence[float]
    std: Sequence[float]


def main(arguments: Sequence[str]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    return run_program("fetch-weights", partial(fetch, arguments))


def fetch(arguments: Sequence[str]) -> int:
    """Download, write the file, and say how to train from it. Returns the exit code."""
    config = load_config("fetch_weights", FetchConfig, arguments)
    path = Path(config.output)
    published = (_from_timm if config.model.name.startswith(TIMM) else _from_torchvision)(config)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_weights(published.model, path)
    log.info("%s: %.1f MB", path, path.stat().st_size / 1e6)
    settings = {
        "model.name": config.model.name.partition(".")[0],
        "model.weights": str(path),
        "data.image_size": published.size,
        "data.resize": published.resize,
        "data.mean": list(published.mean),
        "data.std": list(published.std),
    }
    overrides = " ".join(f"{key}={shown(value)}" for key, value in settings.items())
    log.info('make local-train ARGS="data=folder data.root=PATH %s"', overrides)
    return exit_codes.FINISHED


def write_weights(model: nn.Module, path: Path) -> None:
    """Write the state dict, whole or not at all, as the suffix says."""
    state = {key: value.detach().clone() for key, value in model.state_dict().items()}
    if path.suffix != SAFETENSORS:
        save_tensors(state, path)
        return
    with replacing(path, needed=sum(value.nbytes for value in state.values())) as temporary:
        save_file({key: value.contiguous() for key, value in state.items()}, temporary)


def _from_torchvision(config: FetchConfig) -> Published:
    names = torchvision.models.list_models(module=torchvision.models)
    name = config.model.name
    if name not in names:
        must = f"must be a model of torchvision, or timm/NAME{near(name, names)}"
        raise ConfigError("model.name", name, must)
    kinds = torchvision.models.get_model_weights(name)
    known = [*(each.name for each in kinds), "DEFAULT"]
    if config.weights not in known:
        must = f"must be one of {', '.join(known)}{near(config.weights, known)}"
        raise ConfigError("weights", config.weights, must)
    weights = kinds[config.weights]
    try:
        model = torchvision.models.get_model(name, weights=weights)
    except Exception as error:
        raise _failed(config, error) from error
    preset = weights.transforms()
    size, resize = preset.crop_size[0], preset.resize_size[0]
    return Published(model, size, max(size, resize), preset.mean, preset.std)


def _from_timm(config: FetchConfig) -> Published:
    name = require_timm_model("model.name", config.model.name)
    import timm
    from huggingface_hub import constants

    if not timm.is_model_pretrained(name):
        raise ConfigError("model.name", config.model.name, "timm has no published weights of it")
    unreachable = _unreachable(constants.ENDPOINT)
    if unreachable:
        # Files in its cache are found; without this, it retries for a minute.
        constants.HF_HUB_OFFLINE = True
    try:
        model = timm.create_model(name, pretrained=True)
    except Exception as error:
        raise _failed(config, unreachable or error) from error
    trained = model.pretrained_cfg
    size = trained["input_size"][-1]
    resize = max(size, round(size / trained["crop_pct"]))
    return Published(model, size, resize, trained["mean"], trained["std"])


def _unreachable(url: str) -> OSError | None:
    """Why the server does not answer; None if it does, whatever it says."""
    try:
        with urlopen(Request(url, method="HEAD"), timeout=PATIENCE_S):
            return None
    except HTTPError:
        return None
    except OSError as error:
        return error


def _failed(config: FetchConfig, error: Exception) -> DownloadError:
    reason = str(error).partition("\n")[0] or type(error).__name__
    return DownloadError(
        f"model.name={config.model.name}: its weights cannot be downloaded ({reason}); check the "
        "network, or fetch them on another machine and copy the file"
    )


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
