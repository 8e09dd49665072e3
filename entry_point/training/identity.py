"""What must not change between a checkpoint and the run that goes on from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from entry_point.config import TrainConfig
from entry_point.config_errors import ConfigError
from entry_point.data import Source


def identity(config: TrainConfig, train: Source) -> dict[str, Any]:
    """The settings that decide which weights come out."""
    optim = {f"optim.{key}": value for key, value in asdict(config.optim).items()}
    return {
        "model.name": config.model.name,
        "classes": list(train.classes),
        "training images": len(train),
        "data.image_size": config.data.image_size,
        "trainer.batch_size": config.trainer.batch_size,
        "trainer.seed": config.trainer.seed,
        **optim,
    }


def check_identity(saved: Mapping[str, Any], configured: Mapping[str, Any]) -> None:
    """Refuse to go on from the checkpoint of another job.

    Raises:
        ConfigError: names the first setting that differs, with both values.
    """
    for key, value in configured.items():
        if saved.get(key) != value:
            raise ConfigError(
                f"{key}={value}: the checkpoint to go on from was made with "
                f"{key}={saved.get(key)}; "
                "set it back, train under another name, or set trainer.resume=false"
            )
