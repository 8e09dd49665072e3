"""What must not change between a checkpoint and the run that goes on from it."""

from __future__ import annotations

import zlib
from dataclasses import asdict
from typing import Any

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import TrainConfig
from entry_point.data.sources.source import Source
from entry_point.data.sources.stream import StreamSource
from entry_point.training.checkpoints.checkpoint import State
from entry_point.training.devices import Devices

Settings = dict[str, Any]

STEPS = "steps per epoch"
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
        STEPS: steps_per_epoch,
        **optim,
    }


def order(config: TrainConfig, train: Source, devices: Devices) -> Settings:
    """The settings that decide the order of an epoch's samples: not to be changed before its end.

    By `data.access=map` the order is cut for any number of ranks; a stream's shards are dealt out.
    A collective call.
    """
    data = config.data
    settings: Settings = {"data.access": data.access}
    if data.access == "stream":
        settings |= {
            "data.window_shards": data.window_shards,
            "data.sharded_by_host": data.sharded_by_host,
            "ranks": devices.world_size,
        }
    if data.sharded_by_host:
        assert isinstance(train, StreamSource)
        shards = devices.gather(_fingerprint(train.shards_here))
        settings |= {f"shards of rank {rank}": own for rank, own in enumerate(shards)}
    return settings


def _fingerprint(shards: list[int]) -> str:
    """How many, and a checksum of which."""
    return f"{len(shards)} (#{zlib.crc32(repr(shards).encode()):08x})"


def check_goes_on(state: State, settings: Settings, order_now: Settings) -> None:
    """Refuse the checkpoint of another job, or of an epoch whose samples were dealt otherwise.

    Raises:
        ConfigError: names the first setting that differs, with both values.
    """
    # Where hosts have shards of their own, other hosts can make other steps.
    if state["step"] or state["identity"][STEPS] != settings[STEPS]:
        check_same(state["order"], order_now)
    check_same(state["identity"], settings)


def check_same(saved: Settings, configured: Settings) -> None:
    """Raise ConfigError for the first setting that differs."""
    for key in saved | configured:
        was, now = saved.get(key), configured.get(key)
        if was != now:
            raise ConfigError(
                f"{key}={now}: the checkpoint to go on from was made with {key}={was}; "
                "set it back, train under another name, or set trainer.resume=false"
            )
