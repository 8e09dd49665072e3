"""The overrides of a launch: those of configs/launch.yaml, and those of the job."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from hydra.core.override_parser.types import Override

from entry_point.config.compose import check_config, compose_plain, parse_overrides
from entry_point.config.config_errors import ConfigError
from launch.request.launch_config import LaunchConfig

_LAUNCH_KEYS = {item.name for item in fields(LaunchConfig)}
# Their values reach the job as typed: `true` and `1.10` stay text.
_TEXT_KEYS = ("job.environment.", "job.tags.", "environment.")


def load_launch_config(arguments: Sequence[str]) -> tuple[LaunchConfig, list[str]]:
    """Return the launch config and the job's overrides; raises ConfigError."""
    launch, job = split_overrides(arguments)
    plain = compose_plain("launch", launch)
    _expand_channels(plain)
    return check_config(plain, LaunchConfig, arguments), job


def load_names(arguments: Sequence[str]) -> tuple[list[str], LaunchConfig]:
    """Return the names on a command line, and the launch config of its overrides.

    Raises ConfigError, also for an override of anything else.
    """
    names, overrides = split_names(arguments)
    config, others = load_launch_config(overrides)
    if others:
        raise ConfigError(others[0], must="must be an override of configs/launch.yaml")
    return names, config


def split_names(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments without `=`, and those with it, the overrides."""
    names = [argument for argument in arguments if "=" not in argument]
    return names, [argument for argument in arguments if "=" in argument]


def split_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides of the launch config and those of the job, each in the given order."""
    launch: list[str] = []
    job: list[str] = []
    for text, override in zip(arguments, parse_overrides(arguments), strict=True):
        if override.is_sweep_override():
            raise ConfigError(
                text, must="is a sweep; `make sagemaker-sweep` trains one job per value"
            )
        first = override.key_or_group.replace("/", ".").split(".")[0]
        if first in _LAUNCH_KEYS:
            launch.append(opened(override))
        else:
            job.append(text)
    return launch, job


def require_job_keys(keys: Iterable[str]) -> None:
    """Raise ConfigError for a key of the launch config: the trials of a sweep share it."""
    for key in keys:
        if key.replace("/", ".").split(".")[0] in _LAUNCH_KEYS:
            raise ConfigError(key, must="is the same for all trials; vary a setting of the job")


def opened(override: Override) -> str:
    """The override, with which Hydra accepts any key: `check_config` knows which exist."""
    text, name = override.input_line or "", override.key_or_group
    if text.startswith("~") or name == "target":
        return text
    if name.startswith(_TEXT_KEYS) and isinstance(override.value(), bool | int | float | None):
        text = f"{name}='{text.partition('=')[2]}'"
    return f"++{text.lstrip('+')}"


def _expand_channels(plain: dict[str, Any]) -> None:
    """Turn a channel that is only an S3 prefix into one with the default fields."""
    job = plain.setdefault("job", {})
    if not isinstance(job, dict):
        raise ConfigError("job", job, "must name a key, as in job.role=ARN")
    channels = job.get("channels", {})
    if not isinstance(channels, Mapping):
        raise ConfigError("job.channels", channels, "must name a channel, as in job.channels.NAME=")
    job["channels"] = {
        name: {"s3": channel} if isinstance(channel, str) else channel
        for name, channel in channels.items()
    }
