"""How the errors of Hydra and OmegaConf become a `ConfigError`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    OmegaConfBaseException,
)

from entry_point.config.config_errors import ConfigError, near

_BESIDE_OPTIONS = {"model": " (model.name=NAME takes any classification model of torchvision)"}
_OF_LAUNCH = ("target", "job", "tuning", "resume_from")
"""The keys of configs/launch.yaml, which no job has."""
_MOST_NAMES, _MOST_SUGGESTED = 9, 3
"""Nobody reads longer lists."""
# Part of OmegaConf's text -> ours.
_PLAIN = {
    "could not be converted to Integer": "must be a whole number",
    "could not be converted to Float": "must be a number",
    "is not a valid bool": "must be true or false",
}


def explain(error: Exception, overrides: Sequence[str]) -> ConfigError:
    """Turn an error of Hydra or OmegaConf into one line that quotes the override at fault."""
    cause = next((e for e in _chain(error) if isinstance(e, OmegaConfBaseException)), None)
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, option = (error.missing_cfg_file or "").rpartition("/")
        options = sorted(error.options)
        allowed = ", ".join(options) + _BESIDE_OPTIONS.get(group, "")
        return ConfigError(group, option, f"must be one of {allowed}{near(option, options)}")
    if isinstance(cause, (ConfigKeyError, ConfigAttributeError)):
        return _unknown_key(cause, _typed(cause.full_key or str(cause.key), overrides, error))
    if isinstance(error, OverrideParseException):
        must = "not an override as in key=value; quote a value that has ,[]{}"
        return ConfigError(str(error.override), must=must)
    if cause is not None and cause.full_key:
        text = str(cause.msg or cause).splitlines()[0]
        must = next((plain for words, plain in _PLAIN.items() if words in text), text)
        return ConfigError(_typed(cause.full_key, overrides, error), must=must)
    if found := re.match(r"Could not override '([^']+)'", str(error)):
        return _no_such_key(_typed(found[1], overrides, error), found[1], [])
    lines = (line.strip() for line in str(error).splitlines())
    return ConfigError("configuration", must=" ".join(line for line in lines if line))


def _chain(error: BaseException | None) -> Iterable[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _unknown_key(error: OmegaConfBaseException, typed: str) -> ConfigError:
    full_key = error.full_key or str(error.key)
    schema = error.object_type
    known = [f.name for f in fields(schema)] if is_dataclass(schema) else []
    if "." not in full_key and is_dataclass(schema):
        below = [key for key in _keys(schema) if key.rpartition(".")[2] == full_key]
        if 0 < len(below) <= _MOST_SUGGESTED:
            return ConfigError(typed, must=f"no such key; did you mean {' or '.join(below)}?")
    return _no_such_key(typed, full_key, known)


def _keys(schema: Any, prefix: str = "") -> Iterator[str]:
    """The dotted keys of a dataclass and of those in it."""
    for name, kind in get_type_hints(schema).items():
        yield f"{prefix}{name}"
        if is_dataclass(kind):
            yield from _keys(kind, f"{prefix}{name}.")


def _no_such_key(typed: str, full_key: str, known: Sequence[str]) -> ConfigError:
    group, _, name = full_key.rpartition(".")
    if full_key in _OF_LAUNCH:
        return ConfigError(typed, must="is a setting of `make sagemaker-train`; remove it")
    if advice := near(name, known):
        return ConfigError(typed, must=f"no such key{advice}")
    where = group or "the top level"
    if len(known) > _MOST_NAMES:
        return ConfigError(typed, must=f"no such key; docs/settings.md lists those of {where}")
    has = f"; {where} has {', '.join(known)}" if known else ""
    return ConfigError(typed, must=f"no such key{has}")


def _typed(key: str, overrides: Sequence[str], error: Exception) -> str:
    """Return the override of `key` at fault as typed; without one, the key alone.

    Hydra's errors end with the override at fault. Other errors are about the last one, which wins.
    """
    typed = [o for o in reversed(overrides) if o.lstrip("+~").split("=")[0] == key]
    return next((o for o in typed if str(error).endswith(o)), typed[0] if typed else key)
