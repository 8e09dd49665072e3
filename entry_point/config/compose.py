"""The only way in for a configuration: Hydra composes it from `configs/`, a dataclass checks it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar, cast

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from entry_point.config.config_errors import ConfigError
from entry_point.config.hydra_errors import explain
from entry_point.contract import own_code

T = TypeVar("T")
CONFIGS = own_code.configs()
# Settings whose keys are the user's: model.kwargs, logger_kwargs, ...
_OPEN = re.compile(r"((\w+\.)*(\w+_)?kwargs|optim\.groups)\b[.=]")


def load_config(name: str, schema: type[T], overrides: Sequence[str]) -> T:
    """Compose `configs/<name>.yaml` with Hydra overrides and return a checked `schema`.

    The YAML file names `<name>_schema` in its defaults list.

    Raises:
        ConfigError: one line that names the key, its value and what is allowed.
    """
    ConfigStore.instance().store(name=f"{name}_schema", node=schema)
    return check_config(compose_plain(name, overrides), schema, overrides)


def load_resolved(yaml_text: str, schema: type[T]) -> T:
    """Return the config that `resolved_yaml` wrote, checked again; raises ConfigError."""
    plain = OmegaConf.to_container(OmegaConf.create(yaml_text))
    return check_config(_escaped(plain), schema)


def resolved_yaml(config: Any) -> str:
    """A config as YAML text without interpolations or missing values."""
    return OmegaConf.to_yaml(OmegaConf.create(_escaped(asdict(config))), resolve=True)


def compose_plain(name: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Compose `configs/<name>.yaml` with Hydra overrides, unchecked; raises ConfigError."""
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            plain = OmegaConf.to_container(compose(name, [_opened(text) for text in overrides]))
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise explain(error, overrides) from error
    return cast(dict[str, Any], plain)


def _opened(override: str) -> str:
    """The override, with which Hydra adds a new key below kwargs."""
    return f"++{override}" if _OPEN.match(override) else override


def check_config(plain: Mapping[str, Any], schema: type[T], overrides: Sequence[str] = ()) -> T:
    """Return `plain` as a checked `schema`; `overrides` are quoted in a ConfigError."""
    try:
        config = OmegaConf.merge(OmegaConf.structured(schema), plain)
        if missing := sorted(OmegaConf.missing_keys(config)):
            raise ConfigError(missing[0], must=f"has no value; add {missing[0]}=VALUE")
        return cast(T, OmegaConf.to_object(config))
    except OmegaConfBaseException as error:
        raise explain(error, overrides) from error


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse Hydra overrides; raises ConfigError for the first that is none."""
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        raise explain(error, overrides) from error


def _escaped(value: Any) -> Any:
    """Keep OmegaConf from reading a resolved `${` as an interpolation."""
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return value
