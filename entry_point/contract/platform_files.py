"""Reads the files that the platform leaves in `input/config`, and checks that they hold true."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from entry_point.contract import hyperparameters
from entry_point.contract.printable import masked
from entry_point.contract.program import UserError
from entry_point.contract.run_folder import RunFolder
from entry_point.contract.whole_file import write_text

LOCAL = "local"
"""The instance type of a job that this machine's launchers start."""


class ContractError(UserError):
    """What the platform or the launcher says about the job is wrong, or promises something missing;
    the message names the file or the variable."""


def read_json(path: Path) -> dict[str, Any]:
    """A file's JSON object; an empty one if there is no file. Raises ContractError."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ContractError(f"{path}: must be JSON ({error})") from error
    if not isinstance(content, dict):
        raise ContractError(f"{path}: must hold a JSON object, not {type(content).__name__}")
    return content


def read_overrides(folder: Path) -> list[str]:
    """Hydra overrides from hyperparameters.json. Raises ContractError."""
    path = folder / "hyperparameters.json"
    content = {key: str(value) for key, value in read_json(path).items()}
    _refuse_script(content.get("sagemaker_program"))
    try:
        return hyperparameters.decode(content)
    except ValueError as error:
        raise ContractError(f"{path}: {error}") from error


def _refuse_script(value: str | None) -> None:
    """Refuse a job whose script would be ignored: SDK v2 sends it with `entry_point=`.

    In AWS's own image, SageMaker's toolkit runs the script, which may start this program.
    """
    script = (value or "").strip('"')  # the SDK writes JSON
    if script and "SM_USER_ENTRY_POINT" not in os.environ:
        raise ContractError(
            f"hyperparameter sagemaker_program={script}: this image runs its own program, not an "
            "entry_point of yours; drop entry_point and send the code in project/ with "
            "job.code=true, or run your script with SDK v3's ModelTrainer(source_code=...)"
        )


def forget_credentials(folder: Path, overrides: Sequence[str]) -> None:
    """Mask credentials in hyperparameters.json once its `overrides` are read.

    Only in a run folder on this machine, which people keep: the platform's file stays as it is.
    """
    kind = read_json(folder / "resourceconfig.json").get("current_instance_type", LOCAL)
    without = masked([*overrides])
    if kind == LOCAL and without != [*overrides]:
        content = json.dumps(hyperparameters.encode(without), indent=2)
        with suppress(OSError):  # mounted read-only: docker-train masks it
            write_text(folder / "hyperparameters.json", content + "\n")


def check_channels(run: RunFolder) -> None:
    """Check that every channel in inputdataconfig.json has a folder. Raises ContractError."""
    path = run.platform_config / "inputdataconfig.json"
    for channel in read_json(path):
        if not (run.channels / channel).is_dir():
            raise ContractError(
                f"{path}: channel {channel!r}: must have the folder {run.channels / channel}"
            )
