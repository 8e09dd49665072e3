"""Finds the `data.mean` and `data.std` that the weights were trained with, unless they are set."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from yaml import YAMLError, safe_load

from entry_point.config.checking import check_config
from entry_point.config.config_errors import ConfigError, shown
from entry_point.config.data_config import IMAGENET, DataConfig
from entry_point.config.train_config import ModelConfig, TrainConfig
from entry_point.data.errors import DataError
from entry_point.data.sources.file_bytes import read_text
from entry_point.job.devices import Devices
from entry_point.job.run_folder import RunFolder
from entry_point.training.published_weights import published
from entry_point.training.resume import Settings, read_identity, saved_identity
from entry_point.training.weights import weights_file

logger = logging.getLogger(__name__)

Pixels = dict[str, list[float]]
"""The settings `mean` and `std` of `data`."""


def with_expected_pixels(config: TrainConfig, run: RunFolder, devices: Devices) -> TrainConfig:
    """Returns the configuration with values for `data.mean` and `data.std`.

    A setting that is null gets the value of the checkpoint from which the run resumes, else the
    value that `model.weights` expect, else ImageNet's. A collective call. Raises ConfigError.
    """
    data = config.data
    if data.mean is not None and data.std is not None:
        return config
    saved = devices.from_first(saved_identity(run.checkpoints) if devices.is_first else {})
    pixels, reason = _from_identity(saved), "as the run's checkpoint has it"
    if not pixels:
        pixels, reason = _from_weights(config.model, run.channels)
    found = replace(data, mean=data.mean or pixels.get("mean"), std=data.std or pixels.get("std"))
    mean, std = found.normalization
    if found.normalization != DataConfig().normalization:
        logger.info("data.mean=%s data.std=%s, %s", shown(mean), shown(std), reason)
    return replace(config, data=replace(found, mean=mean, std=std))


def _from_identity(identity: Settings) -> Pixels:
    """Returns the settings of a checkpoint; empty for an empty identity."""
    return _valid({key: identity.get(f"data.{key}") for key in IMAGENET})


def _from_weights(config: ModelConfig, channels: Path) -> tuple[Pixels, str]:
    """Returns the settings that the weights expect, empty if unknown, and where they come from."""
    if config.weights is None:
        return {}, ""
    file, known = weights_file(config, channels), published(config.name)
    usual = {} if known is None else _valid(known.data)
    if known is not None and file.name == Path(known.file).name:
        return usual, f"which the published weights of {config.name} were trained with"
    for found in (_from_identity(read_identity(file)), _beside(file)):
        if found:
            return found, f"which the weights in {file} were trained with"
    if usual and usual != _valid(IMAGENET):
        typed = " ".join(f"data.{key}={shown(value)}" for key, value in usual.items())
        logger.warning(
            "nothing says which data.mean and data.std the weights in %s were trained with: "
            "ImageNet's are used; those published for %s expect %s",
            file,
            config.name,
            typed,
        )
    return {}, ""


def _beside(file: Path) -> Pixels:
    """Returns the settings in `file`'s folder: a model's config.yaml, or a hub's config.json."""
    for name, read, key in (
        ("config.yaml", safe_load, "data"),
        ("config.json", json.loads, "pretrained_cfg"),
    ):
        with suppress(OSError, DataError, ValueError, RecursionError, YAMLError):
            content = read(read_text(file.with_name(name)))
            if found := _valid(content.get(key) if isinstance(content, dict) else None):
                return found
    return {}


def _valid(values: Any) -> Pixels:
    """Returns `mean` and `std` of a mapping; empty for anything else, or if either is invalid."""
    with suppress(ConfigError, LookupError, TypeError):
        found = {key: [*values[key]] for key in IMAGENET}
        check_config(found, DataConfig, "data")
        return found
    return {}
