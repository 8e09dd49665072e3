"""Resolves settings that name code: a known word, or the dotted path of your own."""

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Callable, Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from entry_point.config.config_errors import ConfigError, did_you_mean
from entry_point.config.retired import retired

T = TypeVar("T")
TIMM = "timm/"
"""Prefix of `model.name` for models of timm."""


def resolve(key: str, name: str, known: Mapping[str, T]) -> T | Any:
    """Return `known[name]`, or the object with the dotted path `name` (package.module.thing).

    Raises:
        ConfigError: `name` is neither; the line names `key`, the known words and the nearest one.
    """
    check_name(key, name, known)
    return known[name] if name in known else _import(key, name)


def check_name(key: str, name: str, known: Collection[str]) -> None:
    """Raise ConfigError unless `name` is a known word or has the form of a dotted path.

    For configurations, which are also checked where the user's packages are not installed.
    """
    is_path = "." in name and all(part.isidentifier() for part in name.split("."))
    if name not in known and not is_path:
        words = f"one of {', '.join(known)}, or " if known else ""
        message = f"must be {words}a dotted path to your own code{did_you_mean(name, known)}"
        raise ConfigError(key, name, message)


def require_package(key: str, name: str, package: str, extra: str) -> None:
    """Raise ConfigError unless the optional package that `name` needs is installed."""
    if find_spec(package) is None:
        message = (
            f"needs the package {package}: run `make setup EXTRAS={extra}`, or build the image "
            f"with `make image EXTRAS={extra}`"
        )
        raise ConfigError(key, name, message)


def full_name(thing: object) -> str:
    """Returns the dotted path of an object's class, as used in settings."""
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _import(key: str, path: str) -> Any:
    module_name, _, attribute = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # importing a module may raise any error
        reason = f"{type(error).__name__}: {error}".partition("\n")[0] + _line_of(error)
        if isinstance(error, ModuleNotFoundError) and (instead := retired(f"import {error.name}")):
            reason = f"{error.name} is {instead}"
        raise ConfigError(key, path, f"{module_name} cannot be imported ({reason})") from error
    if not hasattr(module, attribute):
        names = [name for name in vars(module) if not name.startswith("_")]
        message = f"{module_name} has no {attribute}{did_you_mean(attribute, names)}"
        raise ConfigError(key, path, message)
    return getattr(module, attribute)


def _line_of(error: Exception) -> str:
    """Returns the line of your own code that raised an error in an import, as ", at net.py:7"."""
    _here, _importlib, *frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if Path(f.filename).is_file() and "site-packages" not in f.filename]
    return f", at {own[-1].filename}:{own[-1].lineno}" if own else ""


def call(
    key: str, function: Callable[..., T], kwargs: Mapping[str, Any], /, *given: Any, **named: Any
) -> T:
    """Return `function(*given, **named, **kwargs)`, where `kwargs` are the values of `key`.

    Raises:
        ConfigError: as `check_call` does.
    """
    check_call(key, function, kwargs, *given, **named)
    return function(*given, **named, **kwargs)


def check_call(
    key: str, function: Callable[..., Any], kwargs: Mapping[str, Any], /, *given: Any, **named: Any
) -> None:
    """Compare a call's arguments with the signature of `function`, without calling it.

    Raises:
        ConfigError: `function` does not take one of `kwargs`, needs one that is missing, or `key`
            sets what the job itself passes.
    """
    if own := sorted(set(kwargs) & set(named)):
        raise ConfigError(f"{key}.{own[0]}", kwargs[own[0]], "is set by the job; remove it")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # functions in C have no signature
        return
    taken = signature.parameters
    called = getattr(function, "__qualname__", type(function).__qualname__)
    takes_any = any(each.kind is each.VAR_KEYWORD for each in taken.values())
    for name, value in kwargs.items():
        if name not in taken and not takes_any:
            allowed = [each for each in list(taken)[len(given) :] if each not in named]
            message = f"no such argument; {called} takes {', '.join(allowed) or 'none'}"
            raise ConfigError(f"{key}.{name}", value, f"{message}{did_you_mean(name, allowed)}")
    try:
        signature.bind(*given, **named, **kwargs)
    except TypeError as error:
        raise ConfigError(key, dict(kwargs), f"{called}: {error}") from error
