"""Checks of the settings that name your own code, before a machine is paid for.

The host has neither torch nor your packages, so the code is read, not imported. What is not below
the project's root passes: it may be a package of the image.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from inspect import Signature
from pathlib import Path
from typing import Any

from entry_point.config.config_errors import ConfigError, near
from entry_point.config.own_code import PROGRAM
from entry_point.config.resolve import call
from entry_point.config.train_config import TrainConfig
from launch.request.code.module_source import ModuleSource, find_module, modules_beside


@dataclass(frozen=True)
class Seam:
    """A setting that takes a dotted path, and how the job calls what it names."""

    key: str
    kwargs: str | None
    """The setting with more arguments."""
    given: int = 0
    """Arguments that the job gives by position."""
    named: tuple[str, ...] = ()
    """Those that it gives by name."""


SEAMS = (
    Seam("model.name", "model.kwargs", 0, ("num_classes",)),
    Seam("augment.name", "augment.kwargs"),
    Seam("optim.name", "optim.kwargs", 1, ("lr",)),
    Seam("optim.schedule", "optim.schedule_kwargs", 2),
    Seam("task.name", "task.kwargs", 0, ("train", "config", "device")),
    Seam("task.loss", None, 2),
    Seam("data.format", "data.kwargs", 2),
)
LOGGER = Seam("loggers", "logger_kwargs", 1)
"""One of a list; `logger_kwargs` has the arguments by the last part of the path."""


def code_problems(config: TrainConfig, root: Path = PROGRAM) -> list[str]:
    """A line for each setting that names code which is not there or cannot be called as it is."""
    problems = []
    for seam, path, kwargs in _named_code(config):
        if "." in path and "/" not in path:
            try:
                check(seam, path, kwargs, root)
            except ConfigError as error:
                problems.append(str(error))
    return problems


def _named_code(config: TrainConfig) -> Iterator[tuple[Seam, str, Mapping[str, Any]]]:
    for seam in SEAMS:
        kwargs = _value(config, seam.kwargs) if seam.kwargs else None
        yield seam, str(_value(config, seam.key)), kwargs or {}
    for path in _value(config, LOGGER.key) or ():
        word = path.rpartition(".")[2]
        seam = replace(LOGGER, kwargs=f"{LOGGER.kwargs}.{word}")
        yield seam, path, (_value(config, LOGGER.kwargs or "") or {}).get(word, {})


def _value(config: object, key: str) -> Any:
    for part in key.split("."):
        config = getattr(config, part, None)
    return config


def check(seam: Seam, path: str, kwargs: Mapping[str, Any], root: Path) -> None:
    """Raise ConfigError if the code is below `root` and the job could not call it."""
    module, _, name = path.rpartition(".")
    if find_module(root, module.partition(".")[0]) is None:
        return
    file = find_module(root, module)
    if file is None:
        must = f"there is no module {module}{near(module, modules_beside(root, module))}"
        raise ConfigError(seam.key, path, must)
    source = ModuleSource(root, module, file)
    try:
        if not source.has(name):
            raise ConfigError(seam.key, path, f"{module} has no {name}{near(name, source.names)}")
        signature = source.signature(name)
    except ConfigError:
        raise
    except (SyntaxError, ValueError) as error:
        where = f"{file.relative_to(root)}, line {getattr(error, 'lineno', None) or '?'}"
        must = f"{where}: not Python {platform.python_version()} ({getattr(error, 'msg', error)})"
        raise ConfigError(seam.key, path, must) from error
    if signature is not None:
        call(
            seam.kwargs or seam.key,
            _stand_in(name, signature),
            kwargs,
            *[None] * seam.given,
            **dict.fromkeys(seam.named),
        )


def _stand_in(name: str, signature: Signature) -> Callable[..., None]:
    """A function of that name and signature, which does nothing."""

    def function(*_given: object, **_named: object) -> None:
        """Nothing."""

    function.__qualname__ = name
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function
