"""Loads each configuration: Hydra composes it from `configs/`, pydantic checks it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, TypeVar, cast

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from pydantic import TypeAdapter

from entry_point.config.checking import as_setting, check_config
from entry_point.config.config_errors import ConfigError, did_you_mean, refuse_in_value
from entry_point.config.override_text import spell
from entry_point.config.overrides import as_typed, parse_overrides, typed_value
from entry_point.config.retired import with_later, without_retired
from entry_point.config.schema import TYPED_HERE
from entry_point.job import own_code

T = TypeVar("T")
CONFIGS = own_code.configs()
_PACKAGE_LINE = "# @package _global_"
# Hydra reads it only after blank lines and comments with an @.
_PACKAGE_HEADER = r"(\s*#\s*@.*\n)*\s*#\s*@package +_global_\s*(\n|$)"


def load_config(
    name: str, schema: type[T], overrides: Sequence[str], context: str = TYPED_HERE
) -> T:
    """Compose `configs/<name>.yaml` with Hydra overrides and return a checked `schema`.

    The YAML file names `<name>_schema`, the defaults of the class, in its defaults list. With an
    empty `context`, paths may be URIs.

    Raises:
        ConfigError: a line for each mistake, with the key, its value and what is allowed.
    """
    ConfigStore.instance().store(name=f"{name}_schema", node=defaults(schema))
    parsed = parse_overrides(overrides)
    with _explaining(schema):
        groups = _groups(name)
        options = [each for each in parsed if _is_option(each, groups)]
        for each in options:
            if each.key_or_group == "experiment":
                _require_package_line(as_typed(each).value())
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            config = compose(name, [_as_option(each) for each in options])
        set_values(config, (each for each in parsed if each not in options), schema)
        plain = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))
    refuse_in_value("", plain)
    return check_config(plain, schema, context=context)


def defaults(schema: type) -> dict[str, Any]:
    """Returns the defaults of a class of settings by key, without required keys."""
    known = cast(Any, schema).__pydantic_fields__
    return {
        name: TypeAdapter(Any).dump_python(field.get_default(call_default_factory=True))
        for name, field in known.items()
        if not field.is_required()
    }


def load_resolved(text: str, schema: type[T]) -> T:
    """Parse and check the config that `resolved_yaml` wrote, perhaps in an earlier version.

    Raises ConfigError and YAMLError, also for aliases, which `resolved_yaml` does not write: ten
    lines of nested aliases can expand to gigabytes.
    """
    settings = yaml.load(text, _WithoutAliases)
    if isinstance(settings, dict):
        settings = with_later(without_retired(settings))
    return check_config(settings, schema)


class _WithoutAliases(yaml.SafeLoader):
    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError(f"has the YAML alias *{self.peek_event().anchor}: write its value")
        return super().compose_node(parent, index)


def resolved_yaml(config: Any) -> str:
    """Returns a config as YAML text without interpolations or missing values."""
    return yaml.safe_dump(asdict(config), sort_keys=False, allow_unicode=True)


def _groups(name: str) -> set[str]:
    """Returns the groups for which a file chooses an option, as in `model: resnet18`."""
    with (CONFIGS / f"{name}.yaml").open(encoding="utf-8") as file:
        listed = (yaml.safe_load(file) or {}).get("defaults", ())
    return {group for each in listed if isinstance(each, dict) for group in each}


@contextmanager
def _explaining(schema: type) -> Iterator[None]:
    """Turn errors of Hydra, OmegaConf and YAML into ConfigError."""
    try:
        yield
    except MissingConfigException as error:
        group, _, option = (error.missing_cfg_file or "").partition("/")
        if not error.options:
            raise ConfigError("configuration", message=" ".join(str(error).split())) from error
        message = _no_such_option(group, option, sorted(error.options), schema)
        raise ConfigError(group, option, message) from error
    except OmegaConfBaseException as error:
        raise ConfigError(str(error.full_key), message=str(error.msg).splitlines()[0]) from error
    except yaml.YAMLError as error:  # names the file and the line
        message = f"not valid YAML: {' '.join(str(error).split())}; indent with spaces, never tabs"
        raise ConfigError("configuration", message=message) from error
    except UnicodeDecodeError as error:
        (file, *_) = (f for f in CONFIGS.rglob("*.yaml") if error.object in f.read_bytes())
        raise ConfigError("configuration", message=f"{file} must be UTF-8 text") from error
    except ConfigError:
        raise
    except (HydraException, ValueError) as error:
        # The rest of the message is Hydra's advice for its own command line.
        first, _, rest = (str(error) or str(error.__cause__)).partition("\n")
        reason = f"{first} {rest.splitlines()[0]}" if first.endswith(":") and rest else first
        raise ConfigError("configuration", message=reason) from error


def set_values(config: DictConfig, overrides: Iterable[Override], schema: type) -> None:
    """Set the keys of the overrides; `~key` removes one. `check_config` later refuses unknown keys.

    Raises ConfigError and OmegaConf's errors.
    """
    words = set[str]()
    for override in overrides:
        key = override.key_or_group
        if any(key.startswith(f"{word}.") for word in words):
            continue  # `check_config` refuses the word that was typed in the place of a group
        if not override.is_delete():
            value = typed_value(override, schema)
            words = {*words, key} if isinstance(value, str) else words - {key}
            # Not merged: for a list in the place of a dict, OmegaConf's error would lack the value.
            OmegaConf.update(config, key, value, merge=isinstance(value, dict), force_add=True)
            continue
        above, _, name = key.rpartition(".")
        node = OmegaConf.select(config, above) if above else config
        if not isinstance(node, DictConfig) or name not in node:
            raise ConfigError(f"~{key}", message="no such key; remove this override")
        with open_dict(node):
            del node[name]


def _is_option(override: Override, groups: set[str]) -> bool:
    """Returns whether the override chooses an option of a group, as in `model=resnet50`.

    Raises ConfigError for several values.
    """
    if override.is_sweep_override():
        message = (
            "has several values, which `make sweep` takes; write a list as [A,B], "
            r"a text as \'A,B\'"
        )
        raise ConfigError(str(override.input_line), message=message)
    key = override.key_or_group
    chooses = "/" in key or key in groups or override.package is not None
    return chooses and not isinstance(override.value(), dict)


def _require_package_line(names: Any) -> None:
    """Raise ConfigError for an experiment whose keys Hydra would put below `experiment`."""
    for name in names if isinstance(names, list) else [names]:
        file = CONFIGS / "experiment" / f"{name}.yaml"
        text = file.read_text(encoding="utf-8") if file.is_file() else _PACKAGE_LINE
        if not re.match(_PACKAGE_HEADER, text):
            shown = f"{CONFIGS.name}/experiment/{name}.yaml"
            message = f"the first line of {shown} must be `{_PACKAGE_LINE}`, before all others"
            if text.startswith("\ufeff"):
                message += "; save it without a byte-order mark"
            raise ConfigError("experiment", name, message)


def _as_option(override: Override) -> str:
    """Returns the override with the option's name as typed, which may look like a number.

    Hydra's `+`, which adds a group, is dropped: each group has an option already.
    """
    text = override.input_line or ""
    if override.is_delete():
        return text
    return f"{text.lstrip('+').partition('=')[0]}={spell(as_typed(override).value())}"


def _no_such_option(group: str, option: str, options: Sequence[str], schema: type) -> str:
    """Returns the message for an option that a group does not have, with the allowed ones."""
    instead = as_setting(group, option, schema)
    allowed = ", ".join(options) + (f", or set {instead}" if instead.endswith(f"={option}") else "")
    return f"must be one of {allowed}{did_you_mean(option, options)}"
