"""Checks the job's own overrides before a machine is paid for, with the container's own schema."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath
from typing import Any

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import TrainConfig, TrainerConfig, load_train_config
from entry_point.contract.metrics_line import LOSS, METRICS_OF
from launch.request.code.code_check import code_problems
from launch.request.image_checks import is_gpu
from launch.request.known.gpu_counts import gpu_count
from launch.request.known.image_extras import needed_extras
from launch.request.launch_config import Channel, Target

CHANNELS = PurePosixPath("/opt/ml/input/data")
# The channel that the job reads when data.root is null.
DATA_CHANNEL = "training"


def training_problems(
    overrides: Sequence[str], channels: Collection[str], target: Target
) -> list[str]:
    """Return a line for everything that would end the training job before its first step.

    `channels` are the names of the job's channels.
    """
    try:
        config = _load(tuple(overrides))
    except ConfigError as error:
        return [str(error)]
    return [
        *_missing_inputs(config, channels),
        *code_problems(config, overrides),
        *dict.fromkeys(
            line for each in target.alternatives for line in _rank_problems(config.trainer, each)
        ),
    ]


def own_metrics(overrides: Sequence[str]) -> list[str]:
    """The names of an own task's metrics; none if `training_problems` refuses the overrides."""
    try:
        return _load(tuple(overrides)).task.metrics
    except ConfigError:
        return []


def extras_of_image(overrides: Sequence[str]) -> dict[str, str]:
    """What the job needs of its image besides job.in; see `needed_extras`."""
    return needed_extras(partial(_value, _load(tuple(overrides))))


def logger_problems(overrides: Sequence[str], mlflow: str | None) -> Iterator[str]:
    """`mlflow` is `job.mlflow`, where only this logger writes; overrides that fail have none."""
    try:
        loggers = _load(tuple(overrides)).loggers
    except ConfigError:
        return
    if mlflow and "mlflow" not in loggers:
        yield f"job.mlflow={mlflow}: nothing logs there; add loggers=[tensorboard,mlflow]"


def sharding_problems(
    overrides: Sequence[str], channels: Mapping[str, Channel], target: Target
) -> Iterator[str]:
    """A dataset of which each of several hosts gets a share, where the job expects all of it."""
    try:
        data = _load(tuple(overrides)).data
    except ConfigError:
        return
    root = CHANNELS / (data.root or DATA_CHANNEL)
    hosts = min(sum(count for _, count in machines) for machines in target.alternatives)
    if hosts == 1 or data.sharded_by_host or CHANNELS not in root.parents:
        return
    name = root.relative_to(CHANNELS).parts[0]
    if name in channels and channels[name].distribution == "ShardedByS3Key":
        yield (
            f"job.channels.{name}.distribution=ShardedByS3Key: each of the {hosts} hosts gets only "
            "a share of the dataset; set data.access=stream data.sharded_by_host=true, or drop it"
        )


def tracked_metric(overrides: Sequence[str]) -> str:
    """The metric by which the job chooses its best checkpoint, as SageMaker knows it."""
    task = _load(tuple(overrides)).task
    of_task = [metric.name for metric in METRICS_OF.get(task.name, ())]
    return f"validation:{task.best or (task.metrics or of_task or [LOSS.name])[0]}"


def _value(config: object, key: str) -> Any:
    for part in key.split("."):
        config = getattr(config, part)
    return config


@lru_cache(1)
def _load(overrides: tuple[str, ...]) -> TrainConfig:
    """Composing takes a third of a second."""
    config, _ = load_train_config(overrides)
    return config


def _rank_problems(trainer: TrainerConfig, machines: Sequence[tuple[str, int]]) -> Iterator[str]:
    """The ranks of all hosts share a batch equally, and each has a GPU of its own."""
    ranks = 0
    for instance_type, count in machines:
        on_gpus = is_gpu(instance_type) and trainer.device != "cpu"
        gpus = gpu_count(instance_type) if on_gpus else None
        if on_gpus and gpus is None:
            return
        asked = trainer.nproc_per_host
        if gpus and asked and asked > gpus:
            yield (
                f"trainer.nproc_per_host={asked}: must be at most {gpus}, the GPUs of "
                f"{instance_type}"
            )
            return
        ranks += count * (asked or gpus or 1)
    if trainer.batch_size % max(ranks, 1):
        shown = ", ".join(f"{count} x {kind}" for kind, count in machines)
        yield (
            f"trainer.batch_size={trainer.batch_size}: must be a multiple of the {ranks} ranks "
            f"that share it on {shown}"
        )


def _missing_inputs(config: TrainConfig, channels: Collection[str]) -> Iterator[str]:
    """Inputs that no channel provides. Other absolute paths may exist in your own image."""
    data, weights = config.data, config.model.weights
    if data.format != "demo" and data.root is None and DATA_CHANNEL not in channels:
        yield (
            f"data={data.format}: data.root is not set and there is no channel {DATA_CHANNEL}; "
            f"add {_channel(DATA_CHANNEL)}"
        )
    folders = {"data.root": data.root, "data.index_root": data.index_root}
    folders |= {"data.images": data.images}
    for key, value in folders.items() if data.format != "demo" else ():
        if value is not None:
            yield from _missing_path(key, value, channels)
    if weights is not None:
        # The job looks up a folder among its channels, and a file at its path.
        folder = PurePosixPath(weights)
        named = not folder.suffix and (len(folder.parts) == 1 or folder.parts[0] in channels)
        yield from _missing_path("model.weights", weights, channels, CHANNELS if named else None)


def _missing_path(
    key: str, value: str, channels: Collection[str], base: PurePosixPath | None = None
) -> Iterator[str]:
    path = (base or PurePosixPath()) / value
    if not path.is_absolute():
        yield (
            f"{key}={value}: a path on this machine, but the job sees only its channels; after "
            f"`make upload` add {_channel('NAME')} {key}={CHANNELS}/NAME"
        )
    elif _is_of_this_machine(path):
        yield (
            f"{key}={value}: a folder on this machine, which the job does not have; after "
            f"`make upload` add {_channel('NAME')} {key}={CHANNELS}/NAME"
        )
    elif CHANNELS in path.parents:
        name = path.relative_to(CHANNELS).parts[0]
        if name not in channels:
            yield f"{key}={value}: there is no channel {name}; add {_channel(name)}"


def _is_of_this_machine(path: PurePosixPath) -> bool:
    """Whether an absolute path means a folder of the host: an image has such below /opt only."""
    if path.is_relative_to("/opt"):
        return False
    homes = ("/home", "/Users", "/root", Path.home())
    exists = os.path.exists(path)  # noqa: PTH110 - Path.exists raises if a name is too long
    return exists or any(path.is_relative_to(home) for home in homes)


def _channel(name: str) -> str:
    return f"job.channels.{name}=s3://bucket/prefix/"
