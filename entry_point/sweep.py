"""Several runs from one line: `python -m entry_point.sweep name=NAME optim.lr=0.01,0.1 [...]`.

Values are swept as in Hydra's --multirun (commas, `range(...)`, `choice(...)`), in all
combinations. The runs follow each other in runs/NAME/0, runs/NAME/1, ...; the same line again goes
on where it was stopped. Ends with a table of what each run reached.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from entry_point import exit_codes
from entry_point.config import load_train_config
from entry_point.config_errors import ConfigError, explain

RUNS = Path("runs")


def combinations(overrides: Sequence[str]) -> list[list[str]]:
    """Every run's overrides. Raises ConfigError if any of them would not start."""
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        raise ConfigError(explain(error, overrides)) from error
    axes = [
        [f"{o.get_key_element()}={value}" for value in o.sweep_string_iterator()]
        if o.is_sweep_override()
        else [o.input_line or ""]
        for o in parsed
    ]
    runs = [list(run) for run in itertools.product(*axes)]
    for run in runs:
        load_train_config(run)
    return runs


def run_one(folder: Path, overrides: Sequence[str]) -> int:
    """One run in a process of its own; returns its exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "ML_ROOT": str(folder.absolute())}
    command = [sys.executable, "-m", "entry_point.container", "train", *overrides]
    return subprocess.run(command, env=environment, check=False).returncode


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
    names = [a.removeprefix("name=") for a in arguments if a.startswith("name=")]
    try:
        if len(names) != 1 or not names[0]:
            raise ConfigError("name: say where the runs go, once, as in name=rates")
        runs = combinations([a for a in arguments if not a.startswith("name=")])
    except ConfigError as error:
        sys.stderr.write(f"sweep: {error}\n")
        return exit_codes.USAGE
    folders = [RUNS / names[0] / str(number) for number in range(len(runs))]
    codes = []
    for folder, run in zip(folders, runs, strict=True):
        codes.append(run_one(folder, run))
        if codes[-1] == exit_codes.STOPPED:
            return exit_codes.STOPPED
    for folder, run, code in zip(folders, runs, codes, strict=True):
        sys.stdout.write(f"{folder}  {reached(folder):>8}  exit {code}  {' '.join(run)}\n")
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
