"""Trains every combination of values: `python -m entry_point sweep name=NAME optim.lr=0.01,0.1`.

Values are swept as in Hydra's --multirun: commas, `range(...)`, `choice(...)`. The runs train one
after another in runs/NAME/0, runs/NAME/1, ... The same command resumes a stopped sweep. At the end
a table compares them, as the command `compare` does.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from entry_point.compare import RUNS, comparison, settings_of, spelled
from entry_point.config.config_errors import ConfigError
from entry_point.config.overrides import as_typed, parse_overrides
from entry_point.config.train_config import load_train_config
from entry_point.job.program import ExitCode, stop_signals
from entry_point.job.run_folder import NEW_RUN, RunFolder, check_run_name
from entry_point.training.progress import read_tracked

_FOUND_LATER = ("data.format", "data.access", "data.mean", "data.std")
"""Settings whose null or auto training replaces by values found in the dataset or beside the
weights."""


def sweep(arguments: Sequence[str]) -> int:
    """Train every combination that has not finished, then print the table.

    Returns the exit code. Raises UserError.
    """
    names = [a.removeprefix("name=") for a in arguments if a.startswith("name=")]
    if len(names) != 1 or not names[0]:
        raise ConfigError("name", message="must be given once, as in name=rates")
    check_run_name(names[0])
    runs = combinations([a for a in arguments if not a.startswith("name=")])
    codes, queue = {}, RunQueue()
    for number, overrides in enumerate(runs):
        folder = RUNS / names[0] / str(number)
        told = f"sweep: run {number + 1} of {len(runs)}, {folder}: {' '.join(overrides)}"
        if is_finished := _has_finished(folder, overrides):
            told += ": has finished before"
        sys.stdout.write(f"{told}\n")
        sys.stdout.flush()
        codes[folder] = 0 if is_finished else queue.train(folder, overrides)
        if queue.stopping or codes[folder] == ExitCode.STOPPED:
            return ExitCode.STOPPED
    for (folder, code), overrides in zip(codes.items(), runs, strict=True):
        if code:
            sys.stdout.write(f"{folder}: exit code {code}: {' '.join(overrides)}\n")
    with suppress(OSError):  # not empty: it holds runs
        (RUNS / names[0]).rmdir()
        return ExitCode.FAILED
    sys.stdout.write(f"{comparison([*codes])}\n")
    return ExitCode.FAILED if any(codes.values()) else ExitCode.FINISHED


def combinations(overrides: Sequence[str]) -> list[list[str]]:
    """Returns the overrides of each run. Raises ConfigError for a run that would be refused."""
    axes = [_values(each) for each in parse_overrides(overrides)]
    runs = [list(run) for run in itertools.product(*axes)]
    for run in runs:
        load_train_config(run)
    return runs


def _values(override: Override) -> list[str]:
    """Returns an override for each value, as typed."""
    text = override.input_line or ""
    if not override.is_sweep_override():
        return [text]
    try:
        values = as_typed(override).sweep_string_iterator()
    except HydraException as error:  # as for interval(0,1) and glob(*)
        raise ConfigError(text, message="must list values: A,B, range(...), choice(...)") from error
    return [f"{override.get_key_element()}={value}" for value in values]


def _has_finished(folder: Path, overrides: Sequence[str]) -> bool:
    """Returns whether the run has finished with these overrides.

    A run with other overrides is started: it continues, as with more epochs, or refuses the change.
    """
    has_ended = read_tracked(RunFolder(folder)).finished is not False
    saved = settings_of(folder) if has_ended else {}
    settings = spelled(asdict(load_train_config(overrides)[0])) if saved else {}
    for key in _FOUND_LATER:
        if settings.get(key) in ("null", "auto"):
            settings[key] = saved.get(key, "")
    return bool(saved) and all(saved.get(key) == value for key, value in settings.items())


class RunQueue:
    """Trains one run after another, each in a child process, until a signal stops the sweep.

    A terminal also sends Ctrl-C and SIGHUP to the child; SIGTERM is passed on to it. Then the sweep
    waits for the child, which writes a checkpoint.
    """

    def __init__(self) -> None:
        self.stopping = False
        self._terminated = False
        self._process: subprocess.Popen[bytes] | None = None
        for number in stop_signals():
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.stopping = True
        self._terminated |= number == signal.SIGTERM
        self._pass_on()

    def _pass_on(self) -> None:
        """Pass SIGTERM on once, because a second one would end the child at once."""
        if self._terminated and self._process is not None:
            process, self._process = self._process, None
            process.terminate()

    def train(self, folder: Path, overrides: Sequence[str]) -> int:
        """Train one run; returns its exit code."""
        root = str(folder.absolute())
        environment = {**os.environ, "ML_ROOT": root, NEW_RUN: "" if folder.exists() else root}
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "entry_point", "train", *overrides]
        process = self._process = subprocess.Popen(command, env=environment)
        self._pass_on()  # if a signal arrived before the process existed
        return process.wait()


if __name__ == "__main__":
    from entry_point.__main__ import end_with

    end_with("sweep")
