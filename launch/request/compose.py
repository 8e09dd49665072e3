"""The launch config from configs/launch.yaml and the command line's overrides."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from entry_point.config.config_errors import explain
from launch.request.launch_config import HEADS, LaunchConfig
from launch.request.launch_errors import LaunchError

T = TypeVar("T")
CONFIGS = Path(__file__).resolve().parents[2] / "configs"
# Where `true` and `1.10` are text, to arrive as they were typed.
_TEXTS = ("job.environment.", "job.tags.")


def load(arguments: Sequence[str]) -> tuple[LaunchConfig, list[str]]:
    """The launch config that the overrides ask for, and the overrides that are the job's.

    Raises LaunchError naming the override for bad grammar, an unknown key or a wrong type.
    """
    ours, theirs = split(arguments)
    plain = _composed("launch", ours)
    _spell_out_channels(plain)
    return _typed(plain, LaunchConfig, arguments), theirs


def load_command(name: str, schema: type[T], arguments: Sequence[str]) -> T:
    """`configs/<name>.yaml` with the overrides, as `schema`; raises LaunchError as `load` does."""
    opened = [_opened(o) for o in _parse(arguments)]
    return _typed(_composed(name, opened), schema, arguments)


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Overrides of the launch config, and overrides for the job, each in the order given."""
    ours: list[str] = []
    theirs: list[str] = []
    for text, override in zip(arguments, _parse(arguments), strict=True):
        if override.is_sweep_override():
            raise LaunchError(f"{text}: a sweep; launch one job for each value")
        head = override.key_or_group.replace("/", ".").split(".")[0]
        if head in HEADS:
            ours.append(_opened(override) if "." in override.key_or_group else text)
        else:
            theirs.append(text)
    return ours, theirs


def _composed(name: str, overrides: Sequence[str]) -> dict[Any, Any]:
    """`configs/<name>.yaml` with the overrides applied, as plain Python."""
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            plain = OmegaConf.to_container(compose(name, list(overrides)), resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise LaunchError(str(explain(error, overrides))) from error
    assert isinstance(plain, dict)
    return plain


def _typed(plain: dict[Any, Any], schema: type[T], overrides: Sequence[str]) -> T:
    try:
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), plain))
    except MissingMandatoryValue as error:
        raise LaunchError(f"{error.full_key}: has no value; add {error.full_key}=...") from error
    except OmegaConfBaseException as error:
        raise LaunchError(str(explain(error, overrides))) from error
    assert isinstance(config, schema)
    return config


def _opened(override: Override) -> str:
    """The override of a key that Hydra need not know: the schema says which there are."""
    text = override.input_line or ""
    name = override.key_or_group
    if text.startswith("~"):
        return text
    if name.startswith(_TEXTS) and isinstance(override.value(), bool | int | float | None):
        text = f"{name}='{text.partition('=')[2]}'"
    return f"++{text.lstrip('+')}"


@functools.cache
def _parser() -> OverridesParser:
    return OverridesParser.create()


def _parse(arguments: Sequence[str]) -> list[Override]:
    parsed = []
    for text in arguments:
        try:
            parsed.append(_parser().parse_override(text))
        except HydraException as error:
            raise LaunchError(f"{text}: not an override: {_first_line(error)}") from error
    return parsed


def _spell_out_channels(plain: dict[Any, Any]) -> None:
    """A channel given as a mere S3 prefix becomes one with the default fields."""
    if not isinstance(plain["job"], dict):
        raise LaunchError(f"job={plain['job']}: name a key below it, as in job.role=ARN")
    channels = plain["job"]["channels"]
    if not isinstance(channels, Mapping):
        raise LaunchError(f"job.channels={channels}: expected a name and an S3 prefix for each")
    plain["job"]["channels"] = {
        name: {"s3": channel} if isinstance(channel, str) else channel
        for name, channel in channels.items()
    }


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
