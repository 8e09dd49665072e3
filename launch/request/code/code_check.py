"""Imports the code that settings name, before a machine is paid for: in `.venv`, where torch is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from entry_point.config.train_config import ModelConfig, TrainConfig
from entry_point.contract.own_code import PROGRAM

PYTHON = PROGRAM / ".venv/bin/python"


def code_problems(config: TrainConfig, overrides: Sequence[str]) -> list[str]:
    """A line for each setting that names code which is not there or cannot be called as it is.

    `config` is the composed config of the job's `overrides`. Without `.venv` nothing is checked,
    as a line on stderr says.
    """
    if not _names_code(config):
        return []
    if not PYTHON.exists():
        sys.stderr.write("names of models and code are not checked: no .venv here; make setup\n")
        return []
    command = [str(PYTHON), "-m", "entry_point.check_code", *overrides]
    done = subprocess.run(command, cwd=PROGRAM, capture_output=True, text=True, check=False)
    if done.returncode and not done.stdout:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        return [f"the code that settings name could not be checked in .venv: {last}"]
    return done.stdout.splitlines()


def _names_code(config: TrainConfig) -> bool:
    """Whether a name is not one of the schema's words: those need no import to be checked."""
    words = [config.augment.name, config.optim.name, config.optim.schedule, config.task.name]
    words += [config.task.loss, config.data.format, *config.loggers]
    return config.model.name != ModelConfig.name or any("." in (word or "") for word in words)
