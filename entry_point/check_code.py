"""Check the settings that name code: ``python -m entry_point.check_code OVERRIDE ...``.

Imports what they name and compares its arguments with those that the job gives, but calls nothing.
Prints a line for each setting that would end the job. The launchers run this in `.venv` before a
machine is paid for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from entry_point.config.config_errors import ConfigError
from entry_point.config.resolve import TIMM, check_call, resolve
from entry_point.config.train_config import TrainConfig, load_train_config


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
LOGGERS = "loggers"
"""A list; `logger_kwargs` has the arguments by the last part of the path."""


def main(overrides: Sequence[str]) -> int:
    """Print the problems; 1 if there are any."""
    try:
        problems = [*_problems(load_train_config(overrides)[0])]
    except ConfigError as error:
        problems = [str(error)]
    sys.stdout.writelines(f"{line}\n" for line in problems)
    return 1 if problems else 0


def _problems(config: TrainConfig) -> Iterator[str]:
    for seam, name, kwargs in _names(config):
        try:
            if "." in name and not name.startswith(TIMM):
                _check_own(seam, name, kwargs)
            elif seam.key == "model.name":
                _check_library_model(name)
        except ConfigError as error:
            yield str(error)


def _names(config: TrainConfig) -> Iterator[tuple[Seam, str, Mapping[str, Any]]]:
    for seam in SEAMS:
        yield seam, _value(config, seam.key) or "", _value(config, seam.kwargs) or {}
    for name in config.loggers:
        word = name.rpartition(".")[2]
        kwargs = config.logger_kwargs.get(word, {})
        yield Seam(LOGGERS, f"logger_kwargs.{word}", 1), name, kwargs


def _check_own(seam: Seam, path: str, kwargs: Mapping[str, Any]) -> None:
    if find_spec(path.partition(".")[0]) is None:  # may be a package of the user's own image
        return
    function = resolve(seam.key, path, {})
    given, named = [None] * seam.given, dict.fromkeys(seam.named)
    check_call(seam.kwargs or seam.key, function, kwargs, *given, **named)


def _check_library_model(name: str) -> None:
    # Imported here, as torch takes seconds.
    from entry_point.training.models import require_timm_model, torchvision_builder

    if not name.startswith(TIMM):
        torchvision_builder(name)
    elif find_spec("timm"):  # otherwise the image may have it
        require_timm_model("model.name", name)


def _value(config: object, key: str | None) -> Any:
    if key is None:
        return None
    for part in key.split("."):
        config = getattr(config, part)
    return config


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
