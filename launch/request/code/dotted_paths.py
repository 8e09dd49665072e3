"""Checks of the settings that name your own code, before a machine is paid for.

The host has neither torch nor your packages, so the code is read, not imported. What is not below
the project's root passes: it may be a package of the image. Uses the standard library only, because
`make docker-train` runs before anything is installed.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

from entry_point.config.config_errors import ConfigError, near
from entry_point.config.resolve import call
from entry_point.contract.own_code import PROGRAM
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


def code_problems(
    setting: Callable[[str], Any], root: Path = PROGRAM, *, complete: bool = True
) -> list[str]:
    """A line for each setting that names code which is not there or cannot be called as it is.

    `setting` returns a setting's value by its key, or None. Unless `complete`, it does not know all
    settings, so that an argument may be missing.
    """
    problems = []
    for seam, path, kwargs in _named_code(setting):
        if "." in path and "/" not in path:
            try:
                check(seam, path, kwargs, root, complete=complete)
            except ConfigError as error:
                problems.append(str(error))
    return problems


def value_in(config: object, key: str) -> Any:
    """The value of a setting in a composed config; None if there is none."""
    for part in key.split("."):
        config = config.get(part) if isinstance(config, Mapping) else getattr(config, part, None)
    return config


def _named_code(setting: Callable[[str], Any]) -> Iterator[tuple[Seam, str, Mapping[str, Any]]]:
    for seam in SEAMS:
        yield seam, str(setting(seam.key)), _kwargs(setting, seam)
    for path in setting(LOGGER.key) or ():
        word = path.rpartition(".")[2]
        seam = replace(LOGGER, kwargs=f"{LOGGER.kwargs}.{word}")
        yield seam, path, _kwargs(setting, seam)


def _kwargs(setting: Callable[[str], Any], seam: Seam) -> Mapping[str, Any]:
    found = setting(seam.kwargs) if seam.kwargs else None
    return found if isinstance(found, Mapping) else {}


def check(
    seam: Seam, path: str, kwargs: Mapping[str, Any], root: Path, *, complete: bool = True
) -> None:
    """Raise ConfigError if the code is below `root` and the job could not call it.

    Unless `complete`, `kwargs` may lack some.
    """
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
            _stand_in(name, signature if complete else _with_defaults(signature)),
            kwargs,
            *[None] * seam.given,
            **dict.fromkeys(seam.named),
        )


def _with_defaults(signature: Signature) -> Signature:
    """The signature if every argument had a default."""
    starred = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    parameters = signature.parameters.values()
    return signature.replace(
        parameters=[p if p.kind in starred else p.replace(default=None) for p in parameters]
    )


def _stand_in(name: str, signature: Signature) -> Callable[..., None]:
    """A function of that name and signature, which does nothing."""

    def function(*_given: object, **_named: object) -> None:
        """Nothing."""

    function.__qualname__ = name
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function
