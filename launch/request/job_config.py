"""Checks the job's own overrides before a machine is paid for, with the container's own schema."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import PurePosixPath

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import TrainConfig, load_train_config

CHANNELS = PurePosixPath("/opt/ml/input/data")
# The channel that the job reads when data.root is null.
DATA_CHANNEL = "training"


def training_problems(overrides: Sequence[str], channels: Collection[str]) -> list[str]:
    """Return a line for everything that would end the training job before its first step.

    `channels` are the names of the job's channels.
    """
    try:
        config, _ = load_train_config(overrides)
    except ConfigError as error:
        return [str(error)]
    return list(_missing_inputs(config, channels))


def _missing_inputs(config: TrainConfig, channels: Collection[str]) -> Iterator[str]:
    """Inputs that no channel provides. Other absolute paths may exist in your own image."""
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
    elif CHANNELS in path.parents:
        name = path.relative_to(CHANNELS).parts[0]
        if name not in channels:
            yield f"{key}={value}: there is no channel {name}; add {_channel(name)}"


def _channel(name: str) -> str:
    return f"job.channels.{name}=s3://bucket/prefix/"
