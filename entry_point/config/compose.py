"""The only way in for a configuration: Hydra composes it from `configs/`, pydantic checks it."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import TypeAdapter

from entry_point.config.checking import FOR_LAUNCH, as_setting, check_config, json_tree
from entry_point.config.config_errors import ConfigError, near
from entry_point.config.credentials import refuse_in_overrides, refuse_in_value
from entry_point.config.override_text import quote
from entry_point.config.retired import with_later, without_retired
from entry_point.config.typed_text import as_typed, with_typed_text
from entry_point.job import own_code

T = TypeVar("T")
CONFIGS = own_code.configs()
# No list, dictionary, sweep, quotes or interpolation; commas within braces only.
_PLAIN_TEXT = r"""(?![\[{])(?!.*\$\{)([^'",{]|\{[^'"{}]*\})*"""
_PACKAGE_LINE = "# @package _global_"
# As Hydra reads it: after blank lines and comments with an @ only.
_PACKAGE_HEADER = r"(\s*#\s*@.*\n)*\s*#\s*@package +_global_\s*(\n|$)"


def load_config(name: str, schema: type[T], overrides: Sequence[str]) -> T:
    """Compose `configs/<name>.yaml` with Hydra overrides and return a checked `schema`.

    The YAML file names `<name>_schema`, the defaults of the class, in its defaults list.

    Raises:
        ConfigError: a line for each mistake, with the key, its value and what is allowed.
    """
    ConfigStore.instance().store(name=f"{name}_schema", node=defaults(schema))
    return check_config(compose_plain(name, schema, overrides), schema)


def defaults(schema: type) -> dict[str, Any]:
    """Returns the defaults of a class of settings by key; a key that needs a value has none."""
    known = cast(Any, schema).__pydantic_fields__
    return {
        name: TypeAdapter(Any).dump_python(field.get_default(call_default_factory=True))
        for name, field in known.items()
        if not field.is_required()
    }


def load_resolved(text: str, schema: type[T]) -> T:
    """Return the config that `resolved_yaml` wrote, perhaps of an earlier version, checked again.

    Raises ConfigError and YAMLError, also for aliases, which `resolved_yaml` does not write: ten
    lines of nested ones stand for gigabytes.
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


def compose_plain(name: str, schema: type, overrides: Sequence[str]) -> dict[str, Any]:
    """Compose `configs/<name>.yaml` with Hydra overrides; raises ConfigError.

    Values are not checked yet; settings that are text in `schema` hold the text that was typed.
    """
    parsed = parse_overrides(overrides)
    for override in parsed:
        if override.key_or_group == "experiment":
            _check_experiments(override.value())
    try:
        with (CONFIGS / f"{name}.yaml").open(encoding="utf-8") as file:
            listed = (yaml.safe_load(file) or {}).get("defaults", ())
        # Those of which the file has an option, as in `model: resnet18`.
        groups = {group for each in listed if isinstance(each, dict) for group in each}
        opened = [_opened(override, groups, schema) for override in parsed]
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            plain = OmegaConf.to_container(compose(name, opened), resolve=True)
    except MissingConfigException as error:
        group, _, option = (error.missing_cfg_file or "").rpartition("/")
        if not error.options:
            raise ConfigError("configuration", message=" ".join(str(error).split())) from error
        message = _no_such_option(group, option, schema, sorted(error.options))
        raise ConfigError(group, option, message) from error
    except OmegaConfBaseException as error:
        raise ConfigError(str(error.full_key), message=str(error.msg).splitlines()[0]) from error
    except yaml.YAMLError as error:  # which names the file and the line
        message = f"not valid YAML: {' '.join(str(error).split())}; indent with spaces, never tabs"
        raise ConfigError("configuration", message=message) from error
    except ConfigError:
        raise
    except (HydraException, ValueError) as error:
        # What follows is Hydra's advice for its own command line.
        first, _, rest = (str(error) or str(error.__cause__)).partition("\n")
        reason = f"{first} {rest.splitlines()[0]}" if first.endswith(":") and rest else first
        raise ConfigError("configuration", message=reason) from error
    refuse_in_value("", plain)
    return with_typed_text(plain, schema, parsed, CONFIGS)


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse Hydra overrides; raises ConfigError for the first that is none, or has credentials."""
    refuse_in_overrides(overrides)
    parser = OverridesParser.create()
    return [_parse(parser, override) for override in overrides]


def _parse(parser: OverridesParser, override: str) -> Override:
    """Returns the parsed override. A value that Hydra cannot read is text, as in quotes, if it
    looks so.

    Without quotes, Hydra reads only ASCII letters, and none of `=(){}#&~` within a value. Paths
    have them: s3://bucket/year=2024/, photos (1), photos-{000..146}.tar.
    """
    try:
        return parser.parse_override(override)
    except HydraException as error:
        key, equals, value = override.partition("=")
        if equals and re.fullmatch(_PLAIN_TEXT, value):
            with suppress(HydraException):
                return parser.parse_override(f"{key}={quote(value)}")
        message = "not an override as in key=value; put a value with blanks or any of ,[]{} into "
        message += "single quotes, and no blanks around ="
        raise ConfigError(override, message=message) from error


def _opened(override: Override, groups: Collection[str], schema: type) -> str:
    """Returns the override, with which Hydra takes any key: `check_config` knows which exist.

    `~key` stays as it is; an option of a group, as in `model=resnet50`, is text.
    """
    text, key = override.input_line or "", override.key_or_group
    if override.is_sweep_override():
        message = (
            "has several values, which `make sweep` takes; write a list as [A,B], a text as 'A,B'"
        )
        raise ConfigError(text, message=message)
    if re.search("[/@]", key) or key in groups:
        typed, value = as_typed(override), override.value()
        same = value is None or isinstance(value, dict) or value == typed.value()
        return text if same else f"{text.partition('=')[0]}={typed.get_value_element_as_str()}"
    if text.startswith("~"):
        return text
    if (CONFIGS / key).is_dir():
        raise ConfigError(text, message=_no_such_option(key, override.value(), schema))
    return f"++{text.lstrip('+')}"


def _check_experiments(names: Any) -> None:
    """Raise ConfigError for an experiment whose keys Hydra would put below `experiment`."""
    for name in names if isinstance(names, list) else [names]:
        file = CONFIGS / "experiment" / f"{name}.yaml"
        try:
            text = file.read_text(encoding="utf-8") if file.is_file() else _PACKAGE_LINE
        except UnicodeDecodeError as error:
            message = f"{_shown(file)} must be UTF-8 text ({error})"
            raise ConfigError("experiment", name, message) from error
        if not re.match(_PACKAGE_HEADER, text):
            message = (
                f"the first line of {_shown(file)} must be `{_PACKAGE_LINE}`, before all others"
            )
            if text.startswith("\ufeff"):
                message += "; save it without a byte-order mark"
            raise ConfigError("experiment", name, message)


def _shown(file: Path) -> str:
    """Returns a file of the config tree as people name it."""
    inside = file.is_relative_to(CONFIGS)
    return str(CONFIGS.name / file.relative_to(CONFIGS) if inside else file)


def _no_such_option(group: str, option: object, schema: type, options: Sequence[str] = ()) -> str:
    """Returns what may stand in the place of an option that a group does not have."""
    if group in FOR_LAUNCH and group not in json_tree(schema)["properties"]:
        return FOR_LAUNCH[group]
    instead = as_setting(group, option, schema)
    if not options:
        return f"no such option here; set {instead}"
    allowed = ", ".join(options) + (f", or set {instead}" if instead.endswith(str(option)) else "")
    return f"must be one of {allowed}{near(str(option), options)}"
