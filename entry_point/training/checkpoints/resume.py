"""Reads the newest good checkpoint, and checks that this job may resume from it."""

from __future__ import annotations

import logging
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from entry_point.config.config_errors import ConfigError, shown
from entry_point.config.train_config import TrainConfig
from entry_point.contract.printable import masked
from entry_point.data.sources.source import Source
from entry_point.data.sources.stream import StreamSource
from entry_point.training.checkpoints.checkpoint import BEST, CheckpointError, State, newest_first
from entry_point.training.devices import Devices
from entry_point.training.tensor_file import DamagedFileError, load_tensors

logger = logging.getLogger(__name__)

Settings = dict[str, Any]

STEPS = "steps per epoch"
_PIXELS = (
    *("image_size", "progressive", "resize", "scale", "ratio", "hflip"),
    *("views", "mean", "std"),
)


def load_to_resume(folder: Path, settings: dict[str, Settings], devices: Devices) -> State | None:
    """The first rank's newest checkpoint, on every rank; None to start from scratch.

    A collective call: the platform may restore different checkpoints on different hosts.
    """
    state: State | None = devices.from_first(load_newest(folder) if devices.is_first else None)
    if state is not None:
        check_resumable(state, settings)
    return state


def load_newest(folder: Path) -> State | None:
    """The newest checkpoint that is whole, at last the best one; None if there are none.

    Raises:
        CheckpointError: all of them are damaged.
        OSError: one cannot be read, or does not fit into memory; it may still be whole.
    """
    paths = [*newest_first(folder), *folder.glob(BEST)]
    for path in paths:
        try:
            state: State = load_tensors(path, verify=True)
        except DamagedFileError as error:
            logger.warning("checkpoint %s is damaged (%s); trying the previous one", path, error)
            continue
        logger.info("resuming from %s", path)
        return state
    if paths:
        raise CheckpointError(
            f"all {len(paths)} checkpoints in {folder} are damaged; copy a good one there, or "
            "remove them to restart from scratch"
        )
    return None


def load_best(folder: Path) -> State | None:
    """The best checkpoint; None if there is none.

    Raises CheckpointError if it is damaged.
    """
    path = folder / BEST
    if not path.exists():
        return None
    try:
        state: State = load_tensors(path, verify=True)
    except DamagedFileError as error:
        raise CheckpointError(
            f"{path} is damaged ({error}); set trainer.export=last to export the last weights"
        ) from error
    return state


def job_settings(
    config: TrainConfig, train: Source, steps_per_epoch: int, devices: Devices
) -> dict[str, Settings]:
    """What a checkpoint says about its job. A collective call.

    `identity` must not change between a checkpoint and the run that resumes from it; `order` may
    change between two epochs.
    """
    return {
        "identity": masked(_identity(config, train, steps_per_epoch)),
        "order": sample_order(config, train, devices),
    }


def _identity(config: TrainConfig, train: Source, steps_per_epoch: int) -> Settings:
    """The settings that decide the weights, and which of them are the best."""
    optim = {f"optim.{key}": value for key, value in asdict(config.optim).items()}
    task = {f"task.{key}": value for key, value in asdict(config.task).items() if key != "metrics"}
    augment = {f"augment.{key}": value for key, value in asdict(config.augment).items()}
    return {
        "model.name": config.model.name,
        "model.kwargs": config.model.kwargs,
        "model.freeze": config.model.freeze,
        **{f"class {number}": name for number, name in enumerate(train.classes)},
        "training images": len(train),
        **{f"data.{key}": getattr(config.data, key) for key in _PIXELS},
        "trainer.batch_size": config.trainer.batch_size,
        "trainer.seed": config.trainer.seed,
        STEPS: steps_per_epoch,
        **task,
        **augment,
        **optim,
    }


def sample_order(config: TrainConfig, train: Source, devices: Devices) -> Settings:
    """The settings that decide the order of an epoch's samples. A collective call.

    With `data.access=map` the order does not depend on the number of ranks; of a stream, each rank
    gets its own shards.
    """
    data = config.data
    settings: Settings = {"data.access": data.access}
    if data.balance is not None:
        settings["data.balance"] = data.balance
    if data.repeats > 1:
        settings["data.repeats"] = data.repeats
    if data.access != "map":
        settings["ranks"] = devices.world_size
    if data.access == "stream_by_host":
        assert isinstance(train, StreamSource)
        shards = devices.gather(_fingerprint(train.shards_here))
        settings |= {f"shards of rank {rank}": own for rank, own in enumerate(shards)}
    return settings


def _fingerprint(shards: list[int]) -> str:
    """The number of shards, and a checksum of which ones."""
    return f"{len(shards)} (#{zlib.crc32(repr(shards).encode()):08x})"


def check_resumable(state: State, settings: dict[str, Settings]) -> None:
    """Refuse another job's checkpoint, and one within an epoch whose sample order has changed.

    Raises:
        ConfigError: names the first setting that differs, with both values.
    """
    # With data.access=stream_by_host, another set of hosts may take another number of steps.
    if state["step"] or state["identity"][STEPS] != settings["identity"][STEPS]:
        check_same(state["order"], settings["order"])
    check_same(state["identity"], settings["identity"])


def check_same(saved: Settings, configured: Settings) -> None:
    """Raise ConfigError for the first setting that differs."""
    for key in saved | configured:
        was, now = saved.get(key), configured.get(key)
        if was != now:
            raise ConfigError(
                key,
                now,
                f"the checkpoint was made with {key}={shown(was)}; restore that value, or "
                "use another name to restart from scratch",
            )
