"""Train every combination of values: `python -m entry_point.sweep name=NAME optim.lr=0.01,0.1`.

Values are swept as in Hydra's --multirun: commas, `range(...)`, `choice(...)`. The runs train one
after another in runs/NAME/0, runs/NAME/1, ... The same command resumes a stopped sweep. At the end
a table compares them, as `entry_point.compare` does.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import FrameType

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from entry_point.compare import RUNS, comparison
from entry_point.config.compose import CONFIGS, parse_overrides
from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import TrainConfig, load_train_config
from entry_point.config.typed_text import as_typed, is_text
from entry_point.config.usage import print_settings
from entry_point.job.program import ExitCode, asks_for_help, run_program, stop_signals
from entry_point.job.run_folder import NEW_RUN
from entry_point.job.whole_file import write_text

VALUES = "sweep.json"
"""In the sweep's folder: what each run has of the values that are varied."""


def combinations(overrides: Sequence[str]) -> list[list[str]]:
    """Returns the overrides of each run. Raises ConfigError if a run would not start."""
    axes = [_values(each) for each in parse_overrides(overrides)]
    runs = [list(run) for run in itertools.product(*axes)]
    for run in runs:
        load_train_config(run)
    return runs


def _values(override: Override) -> list[str]:
    """Returns the override of each value; a text is what was typed, as in one run."""
    text, key = override.input_line or "", override.key_or_group
    if not override.is_sweep_override():
        return [text]
    is_word = is_text(key, TrainConfig) or (CONFIGS / key).is_dir()
    try:
        values = (as_typed(override) if is_word else override).sweep_string_iterator()
    except HydraException as error:  # interval(0,1), glob(*)
        raise ConfigError(text, message="must list values: A,B, range(...), choice(...)") from error
    return [f"{override.get_key_element()}={value}" for value in values]


class RunQueue:
    """Trains one run after another, each in a child process, until a signal stops the sweep.

    A terminal sends Ctrl-C and its own end to the child as well; SIGTERM is passed on to it. Then
    the sweep waits for the child, which writes a checkpoint.
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
        """Pass SIGTERM on once: the child takes a second one as an order to exit at once."""
        if self._terminated and self._process is not None:
            process, self._process = self._process, None
            process.terminate()

    def train(self, folder: Path, overrides: Sequence[str]) -> int:
        """Train one run; returns its exit code."""
        root = str(folder.absolute())
        environment = {**os.environ, "ML_ROOT": root, NEW_RUN: "" if folder.exists() else root}
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "entry_point.container", "train", *overrides]
        process = self._process = subprocess.Popen(command, env=environment)
        self._pass_on()  # a signal that came before the process existed
        return process.wait()


def _require_same(folder: Path, runs: Sequence[Sequence[str]]) -> None:
    """Note what distinguishes the runs of this sweep.

    Raises ConfigError if a run had other values: the table would show its results beside the new.
    """
    varied = [i for i, column in enumerate(zip(*runs, strict=True)) if len({*column}) > 1]
    values = [[run[i] for i in varied] for run in runs]
    file = folder / VALUES
    earlier = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    for number, (before, now) in enumerate(zip(earlier, values, strict=False)):
        if before != now and (folder / str(number)).exists():
            had = " ".join(before) or "no varied values"
            message = f"its run {number} has {had}; repeat that command, or choose another name"
            raise ConfigError("name", folder.name, message)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps([*values, *earlier[len(values) :]], indent=1) + "\n")


def sweep(arguments: Sequence[str]) -> int:
    """Train every combination, then print the table; returns the exit code."""
    names = [a.removeprefix("name=") for a in arguments if a.startswith("name=")]
    if len(names) != 1 or not names[0]:
        raise ConfigError("name", message="must be given once, as in name=rates")
    runs = combinations([a for a in arguments if not a.startswith("name=")])
    folders = [RUNS / names[0] / str(number) for number in range(len(runs))]
    _require_same(RUNS / names[0], runs)
    codes, queue = [], RunQueue()
    for number, (folder, run) in enumerate(zip(folders, runs, strict=True), 1):
        sys.stdout.write(f"sweep: run {number} of {len(runs)}, {folder}: {' '.join(run)}\n")
        sys.stdout.flush()
        codes.append(queue.train(folder, run))
        if queue.stopping or codes[-1] == ExitCode.STOPPED:
            return ExitCode.STOPPED
    for folder, run, code in zip(folders, runs, codes, strict=True):
        if code:
            sys.stdout.write(f"{folder}: exit code {code}: {' '.join(run)}\n")
    if [each.name for each in (RUNS / names[0]).iterdir()] == [VALUES]:  # all were refused
        shutil.rmtree(RUNS / names[0])
        return ExitCode.FAILED
    sys.stdout.write(f"{comparison(folders)}\n")
    return ExitCode.FAILED if any(codes) else ExitCode.FINISHED


def main(arguments: Sequence[str]) -> int:
    """Command line: `name=NAME` and Hydra overrides, swept or not."""
    if asks_for_help(arguments, __doc__):
        print_settings(TrainConfig)
        return ExitCode.FINISHED
    return run_program("sweep", partial(sweep, arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
