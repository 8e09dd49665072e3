"""Compares runs: `python -m entry_point.compare [FOLDER ...]`, by default those in `runs`.

Prints a row for each run that has been evaluated: the value of its best checkpoint, and the
settings that differ between these runs. `*` marks the best of all runs that track the same metric.
Of an unfinished run, the settings are not shown.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from yaml import safe_load

from entry_point.config.config_errors import shown
from entry_point.job.known_tasks import ALL_METRICS, LOSS, TASKS, Metric
from entry_point.job.program import ExitCode, UserError, aligned, asks_for_help, run_program
from entry_point.job.run_folder import RunFolder
from entry_point.training.progress import read_tracked, tracked_value
from entry_point.training.results.log import Record, parse_records, validation_records

RUNS = Path("runs")


def found_runs(folders: Sequence[Path]) -> list[Path]:
    """Returns the runs that these folders are or hold, also those of sweeps in them, oldest first.

    Raises UserError if there are none.
    """
    patterns = [f"{depth}output/data/metrics.jsonl" for depth in ("", "*/", "*/*/")]
    files = {
        file.resolve(): file.parents[2]
        for folder in folders
        for pattern in patterns
        for file in sorted(folder.glob(pattern))
        if not file.parents[2].is_symlink()  # runs/latest is one of the others
    }
    if not files:
        raise UserError(f"{', '.join(map(str, folders))}: no run with metrics; name run folders")
    return [files[file] for file in sorted(files, key=lambda file: file.stat().st_mtime)]


def comparison(runs: Sequence[Path]) -> str:
    """Returns the table of these runs, in their order."""
    records = [_evaluations(run) for run in runs]
    settings = [_settings(run) for run in runs]
    known = [each for each in settings if each]
    different = [
        key
        for key in dict.fromkeys(key for each in known for key in each)
        if len({each.get(key) for each in known}) > 1
    ]
    metrics = [
        read_tracked(RunFolder(run)) or _tracked(found, each)
        for run, found, each in zip(runs, records, settings, strict=True)
    ]
    best = [_best(metric, found) for metric, found in zip(metrics, records, strict=True)]
    rows = [["run", "best", "at epoch", *different]]
    for run, metric, record, found, each in zip(
        runs, metrics, best, records, settings, strict=True
    ):
        value = tracked_value(metric, record)
        rivals = [r for m, r in zip(metrics, best, strict=True) if m == metric]
        leads = value is not None and value == tracked_value(metric, _best(metric, rivals))
        rows.append(
            [
                str(run),
                f"{'* ' if leads else '  '}{metric.show(value)} {metric.label}",
                f"{record['epoch'] + 1} of {found[-1]['epoch'] + 1}" if record else "-",
                *(each.get(key, "") for key in different),
            ]
        )
    return aligned(rows)


def _evaluations(run: Path) -> list[Record]:
    file = RunFolder(run).output_data / "metrics.jsonl"
    return validation_records(parse_records(file.read_text())) if file.is_file() else []


def _settings(run: Path) -> dict[str, str]:
    """Returns the settings of a finished run by their dotted keys, in Hydra's syntax."""
    file = RunFolder(run).model / "config.yaml"
    content = safe_load(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return {} if "unfinished" in content else dict(_flat(content))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", shown(value)


def _tracked(records: Sequence[Record], settings: Mapping[str, str]) -> Metric:
    """Returns the metric of a run of an earlier version, which left no name of it; of a task of
    your own, the loss."""
    known = TASKS.get(settings.get("task.name", ""))
    metrics = (*(known.metrics if known else () if settings else ALL_METRICS[1:]), LOSS)
    recorded = [each for each in metrics if records and each.key in records[0]]
    named = [each for each in recorded if each.name == settings.get("task.best")]
    return [*named, *recorded, LOSS][0]


def _best(metric: Metric, records: Sequence[Record]) -> Record:
    """Returns the record with the best value; an empty one if none has a value."""
    best: Record = {}
    for record in records:
        if metric.is_better(tracked_value(metric, record), tracked_value(metric, best)):
            best = record
    return best


def compare(arguments: Sequence[str]) -> int:
    """Print the table; returns the exit code."""
    runs = found_runs([Path(each) for each in arguments] or [RUNS])
    sys.stdout.write(f"{comparison(runs)}\n")
    return ExitCode.FINISHED


def main(arguments: Sequence[str]) -> int:
    """Command line: folders of runs."""
    if asks_for_help(arguments, __doc__):
        return ExitCode.FINISHED
    return run_program("compare", partial(compare, arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
