"""Hydra overrides as SageMaker hyperparameters, and back.

A hyperparameter is an override, `optim.lr` with the value `0.05`, so that the console can show and
search it, and a tuning job can vary it. SDKs, toolkits and tuning jobs write values differently:
JSON's strings, lists and objects, and Python's `None`, are also read.

The driver of SDK v3's `SourceCode` exports each hyperparameter as a shell variable, whose name
cannot have a dot: there, write `optim__lr`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from entry_point.config.config_errors import ConfigError
from entry_point.config.override_text import spell
from entry_point.job.run_folder import ContractError, read_json

FILE = "hyperparameters.json"
# Prefixes of keys that the SDKs, the containers' toolkit and tuning jobs add.
_FOREIGN_PREFIXES = ("sagemaker_", "_tuning_")


def read_overrides(folder: Path) -> list[str]:
    """Returns the Hydra overrides in hyperparameters.json. Raises ContractError."""
    return decode(read_json(folder / FILE))


def encode(overrides: Sequence[str]) -> dict[str, str]:
    """Returns the hyperparameters for overrides; the last override of a key counts, as in Hydra.

    Raises ConfigError for `+key=value` and `~key`, which no hyperparameter can express.
    """
    found = {}
    for override in overrides:
        key, _, value = override.partition("=")
        name = key.lstrip("+~")
        if name != key:
            instead = f"{name}=null" if key.startswith("~") else f"{name}={value}"
            message = f"a job on SageMaker takes key=value only; type {instead}"
            raise ConfigError(override, message=message)
        found[key] = value
    return found


def decode(hyperparameters: Mapping[str, object]) -> list[str]:
    """Returns the Hydra overrides that a job takes from its hyperparameters, in alphabetical
    order: `model.kwargs` comes before `model.kwargs.width`.

    Raises ContractError for a job that was sent a script.
    """
    # With `entry_point=`, SDK v2 sends a script, which this image would ignore. In AWS's own image,
    # SageMaker's toolkit runs the script, which may start this program.
    script = str(hyperparameters.get("sagemaker_program", "")).strip('"')  # the SDK writes JSON
    if script and "SM_USER_ENTRY_POINT" not in os.environ:
        raise ContractError(
            f"hyperparameter sagemaker_program={script}: this image runs its own program, not an "
            "entry_point; drop entry_point and send the code in project/ with "
            "job.code=true, or run your script with SDK v3's ModelTrainer(source_code=...)"
        )
    found = {
        key if "." in key else key.replace("__", "."): str(value)
        for key, value in hyperparameters.items()
        if not key.startswith(_FOREIGN_PREFIXES)
    }
    return [f"{key}={_as_typed(key, value)}" for key, value in sorted(found.items())]


def _as_typed(key: str, value: str) -> str:
    """Returns the value of a hyperparameter as it would be typed after `key=`.

    A value that is valid on the command line means the same here; any other value is text.
    """
    if value == "None":
        return "null"
    # JSON and Hydra differ only in escapes and objects: "gr\u00fcn", "a\\b", {"a": 1}
    if "\\" in value or value.startswith("{"):
        with suppress(ValueError):
            parsed = json.loads(value)
            if isinstance(parsed, str | list | dict):
                return spell(parsed)
    with suppress(HydraException):
        if not OverridesParser.create().parse_override(f"{key}={value}").is_sweep_override():
            return value
    return spell(value)
