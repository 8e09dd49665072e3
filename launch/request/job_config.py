"""The job's own overrides, held against the job's schema and channels before a machine is paid for.

The schema is the one that the container checks with. It needs Hydra, but neither torch nor data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from launch.request.launch_errors import LaunchError

if TYPE_CHECKING:
    from entry_point.config.train_config import TrainConfig

CHANNELS = PurePosixPath("/opt/ml/input/data")
# What the job reads where data.root is null.
DATA_CHANNEL = "training"


def training_problems(overrides: Sequence[str], channels: Collection[str]) -> list[str]:
    """A line for everything that would end the training job before its first step.

    `channels` are the names of those that the job is to get.
    """
    from entry_point.config.config_errors import ConfigError
    from entry_point.config.train_config import load_train_config

    try:
        config, _ = load_train_config(overrides)
    except ConfigError as error:
        return [str(error)]
    return list(_missing_inputs(config, channels))


def _missing_inputs(config: TrainConfig, channels: Collection[str]) -> Iterator[str]:
    """Inputs that no channel brings. Other absolute paths may be in an image of one's own."""
    data, weights = config.data, config.model.weights
    if data.format != "demo" and data.root is None and DATA_CHANNEL not in channels:
        yield (
            f"data={data.format}: data.root is not set and there is no channel {DATA_CHANNEL}; "
            f"add {_channel(DATA_CHANNEL)}"
        )
    folders = {"data.root": data.root, "data.index_root": data.index_root}
    for key, value in folders.items() if data.format != "demo" else ():
        if value is not None:
            yield from _missing_path(key, value, channels)
    if weights is not None:
        # The job looks for a folder of this name among its channels; a file it takes where it lies.
        folder = PurePosixPath(weights)
        named = not folder.suffix and (len(folder.parts) == 1 or folder.parts[0] in channels)
        yield from _missing_path("model.weights", weights, channels, CHANNELS if named else None)


def _missing_path(
    key: str, value: str, channels: Collection[str], base: PurePosixPath | None = None
) -> Iterator[str]:
    path = (base or PurePosixPath()) / value
    if not path.is_absolute():
        yield (
            f"{key}={value}: a path on this machine, and the job sees its channels alone; after "
            f"`make upload` add {_channel('NAME')} {key}={CHANNELS}/NAME"
        )
    elif CHANNELS in path.parents:
        name = path.relative_to(CHANNELS).parts[0]
        if name not in channels:
            yield f"{key}={value}: there is no channel {name}; add {_channel(name)}"


def _channel(name: str) -> str:
    return f"job.channels.{name}=s3://bucket/prefix/"


def check_packing(overrides: Sequence[str]) -> None:
    """The same for the job that packs a data set."""
    from entry_point.config.compose import load_config
    from entry_point.config.config_errors import ConfigError
    from entry_point.config.packing_config import OptimizeConfig

    try:
        load_config("optimize", OptimizeConfig, overrides)
    except ConfigError as error:
        raise LaunchError(str(error)) from error
