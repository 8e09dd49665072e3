"""What must not change between a checkpoint and the run that goes on from it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from entry_point.config import TrainConfig
from entry_point.config_errors import ConfigError
from entry_point.data import Source

Settings = dict[str, Any]

_PIXELS = ("image_size", "transform", "scale", "ratio", "hflip", "mean", "std", "on_error")


def identity(config: TrainConfig, train: Source, steps_per_epoch: int) -> Settings:
    """The settings that decide which weights come out."""
    optim = {f"optim.{key}": value for key, value in asdict(config.optim).items()}
    return {
        "model.name": config.model.name,
        **{f"class {number}": name for number, name in enumerate(train.classes)},
        "training images": len(train),
        **{f"data.{key}": getattr(config.data, key) for key in _PIXELS},
        "trainer.batch_size": config.trainer.batch_size,
        "trainer.seed": config.trainer.seed,
        "steps per epoch": steps_per_epoch,
        **optim,
    }


def order(config: TrainConfig, ranks: int) -> Settings:
    """The settings that decide the order of an epoch's samples: not to be changed before its end.

    By `data.access=map` the order is cut for any number of ranks; a stream's shards are dealt out.
    """
    data = config.data
    settings: Settings = {"data.access": data.access}
    if data.access == "stream":
        settings |= {
            "data.window_shards": data.window_shards,
            "data.sharded_by_host": data.sharded_by_host,
            "ranks": ranks,
        }
    return settings


def check_same(saved: Settings, configured: Settings) -> None:
    """Refuse to go on from the checkpoint of another job.

    Raises:
        ConfigError: names the first setting that differs, with both values.
    """
    for key in saved | configured:
        was, now = saved.get(key), configured.get(key)
        if was != now:
            raise ConfigError(
                f"{key}={now}: the checkpoint to go on from was made with {key}={was}; "
                "set it back, train under another name, or set trainer.resume=false"
            )
