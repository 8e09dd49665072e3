"""Several runs from one line: `python -m entry_point.sweep name=NAME optim.lr=0.01,0.1 [...]`.

Values are swept as in Hydra's --multirun (commas, `range(...)`, `choice(...)`), in all
combinations. The runs follow each other in runs/NAME/0, runs/NAME/1, ...; the same line again goes
on where it was stopped. Ends with a table of what each run reached.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import FrameType

from entry_point.config.compose import parse_overrides
from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import load_train_config
from entry_point.contract import exit_codes
from entry_point.contract.program import run_program

RUNS = Path("runs")


def combinations(overrides: Sequence[str]) -> list[list[str]]:
    """Every run's overrides. Raises ConfigError if any of them would not start."""
    axes = [
        [f"{o.get_key_element()}={value}" for value in o.sweep_string_iterator()]
        if o.is_sweep_override()
        else [o.input_line or ""]
        for o in parse_overrides(overrides)
    ]
    runs = [list(run) for run in itertools.product(*axes)]
    for run in runs:
        load_train_config(run)
    return runs


class Runs:
    """One run after another, each in a process of its own, until a signal ends them.

    Ctrl-C on a terminal reaches the run by itself; SIGTERM is passed on. Either way the run is
    waited for, since it writes a checkpoint.
    """

    def __init__(self) -> None:
        self.stopping = False
        self._terminated = False
        self._process: subprocess.Popen[bytes] | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.stopping = True
        self._terminated |= number == signal.SIGTERM
        self._pass_on()

    def _pass_on(self) -> None:
        """Once: a second request means at once."""
        if self._terminated and self._process is not None:
            process, self._process = self._process, None
            process.terminate()

    def run(self, folder: Path, overrides: Sequence[str]) -> int:
        """Returns the exit code."""
        folder.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "ML_ROOT": str(folder.absolute())}
        command = [sys.executable, "-m", "entry_point.container", "train", *overrides]
        process = self._process = subprocess.Popen(command, env=environment)
        self._pass_on()  # what came before there was a process to pass it on to
        return process.wait()


def reached(folder: Path) -> str:
    """The last validation accuracy of a run, as text."""
    try:
        lines = (folder / "output" / "data" / "metrics.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return "-"
    records = [json.loads(line) for line in lines]
    values = [record["val_accuracy"] for record in records if "val_accuracy" in record]
    return f"{100 * values[-1]:.2f} %" if values else "-"


def main(arguments: Sequence[str]) -> int:
    """Command line: `name=NAME` and Hydra overrides, swept or not."""
    return run_program("sweep", partial(sweep, arguments))


def sweep(arguments: Sequence[str]) -> int:
    """Run every combination, then print the table; returns the exit code."""
    names = [a.removeprefix("name=") for a in arguments if a.startswith("name=")]
    if len(names) != 1 or not names[0]:
        raise ConfigError("name", must="must be given once, as in name=rates")
    runs = combinations([a for a in arguments if not a.startswith("name=")])
    folders = [RUNS / names[0] / str(number) for number in range(len(runs))]
    codes, one_by_one = [], Runs()
    for folder, run in zip(folders, runs, strict=True):
        codes.append(one_by_one.run(folder, run))
        if one_by_one.stopping or codes[-1] == exit_codes.STOPPED:
            return exit_codes.STOPPED
    for folder, run, code in zip(folders, runs, codes, strict=True):
        sys.stdout.write(f"{folder}  {reached(folder):>8}  exit {code}  {' '.join(run)}\n")
    return exit_codes.FAILED if any(codes) else exit_codes.FINISHED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
