"""Compares runs: `python -m entry_point compare [FOLDER ...]`, by default those in `runs`.

Prints a row for each run that has been evaluated: the metric of its best checkpoint, images per
second, and the settings that distinguish these runs best, as many as fit the terminal's width. `*`
marks the best of several runs with the same validation images and metric.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import get_terminal_size
from statistics import median
from textwrap import shorten
from typing import Any

from yaml import safe_load

from entry_point.config.commands import flat
from entry_point.config.config_errors import shown
from entry_point.config.data_config import OF_SAMPLES
from entry_point.job.known_tasks import ALL_METRICS, LOSS, TASKS, Metric
from entry_point.job.program import ExitCode, UserError
from entry_point.job.run_folder import METRICS, RunFolder
from entry_point.job.text import aligned
from entry_point.training.progress import read_tracked, tracked_value
from entry_point.training.results.log import (
    Record,
    column,
    read_records,
    training_records,
    validation_records,
)

RUNS = Path("runs")
_HEAD, _COLUMNS = ("run", "best", "at epoch", "images/s"), 8
"""The first columns, and the most columns; the others are settings."""
_TELLING = (
    *("data.root", "model.name", "model.weights", "optim.name", "optim.lr", "trainer.batch_size"),
    *("data.image_size", "augment.name", "trainer.epochs"),
)
"""Settings that are shown first if they differ."""
_WITHOUT_EFFECT = ("pipeline", "loggers", "logger_kwargs")
"""Groups of settings that do not affect the weights."""


def compare(arguments: Sequence[str]) -> int:
    """Print the table; returns the exit code."""
    runs = found_runs([Path(each) for each in arguments] or [RUNS])
    sys.stdout.write(f"{comparison(runs)}\n")
    return ExitCode.FINISHED


def found_runs(folders: Sequence[Path]) -> list[Path]:
    """Returns the runs among and in these folders, also those of sweeps, oldest first.

    Raises UserError if there are none.
    """
    runs = {
        run.resolve(): run
        for folder in folders
        for run in (folder, *sorted(folder.glob("*")), *sorted(folder.glob("*/*")))
        # runs/latest links to one of the others, and counts only if it is named
        if (run == folder or not run.is_symlink()) and _history(run).is_file()
    }
    if not runs:
        raise UserError(f"{', '.join(map(str, folders))}: no run with metrics; name run folders")
    return sorted(runs.values(), key=lambda run: _history(run).stat().st_mtime)


def _history(folder: Path) -> Path:
    """Returns a run's metrics.jsonl, or its copy in `output/data` if the run was downloaded or lost
    its checkpoints."""
    kept = folder / "checkpoints" / METRICS
    return kept if kept.is_file() else RunFolder(folder).output_data / METRICS


def comparison(folders: Sequence[Path]) -> str:
    """Returns the table of these runs, in their order, as wide as the terminal."""
    runs, width = [*map(_read, folders)], get_terminal_size((100, 24)).columns
    best = [run for run in runs if run.leads(runs)]
    different = _differing_settings([run.settings for run in runs if run.settings])
    for count in range(min(len(different), _COLUMNS - len(_HEAD)), -1, -1):
        keys, others = different[:count], different[count:]
        head = [*_HEAD, *(_end_of(key) for key in keys)]
        table = aligned([head, *(run.row(keys, "* " if run in best else "  ") for run in runs)])
        if max(map(len, table.splitlines())) <= width:
            break
    lines = [table]
    if best:
        lines.append("*: the best of the runs with the same dataset and metric")
    if others:
        lines.append(shorten(f"also differ: {', '.join(others)}", width, placeholder=" ..."))
        lines.append("all settings of a run: RUN/model/config.yaml")
    return "\n".join(lines)


@dataclass(frozen=True)
class _Run:
    """The facts of a run for the table."""

    folder: Path
    metric: Metric
    """The metric that decides which checkpoint is the best."""
    dataset: str
    """Fingerprint of the validation images; empty if unknown."""
    settings: dict[str, str]
    value: float | None
    """The best value of the metric; None if no evaluation has one."""
    epochs: str
    speed: str

    def leads(self, runs: Sequence[_Run]) -> bool:
        """Returns whether this run is the best of several with the same dataset and metric."""
        like = (self.dataset, self.metric)
        values = [run.value for run in runs if (run.dataset, run.metric) == like]
        rivals = [value for value in values if value is not None]
        is_best = not any(self.metric.is_better(value, self.value) for value in rivals)
        return self.value is not None and len(rivals) > 1 and is_best

    def row(self, keys: Sequence[str], mark: str) -> list[str]:
        """Returns the run's cells, at the end those of the settings `keys`."""
        value = f"{mark}{self.metric.show(self.value)} {self.metric.label}"
        settings = (_end_of(self.settings.get(key, "")) for key in keys)
        return [_end_of(str(self.folder), 28), value, self.epochs, self.speed, *settings]


def _read(folder: Path) -> _Run:
    run, settings = RunFolder(folder), settings_of(folder)
    records = read_records(_history(folder))
    evaluations = validation_records(records)
    speeds = column(training_records(records), "images_per_s")
    tracked = read_tracked(run)
    metric = tracked.metric or _tracked(evaluations, settings)
    value: float | None = None
    epochs = "-"
    for record in evaluations:
        if metric.is_better(found := tracked_value(metric, record), value):
            value, epochs = found, f"{record['epoch'] + 1} of {evaluations[-1]['epoch'] + 1}"
    of_dataset = {
        key: value
        for key, value in settings.items()
        if key.startswith("data.") and key.split(".")[1] not in OF_SAMPLES
    }
    dataset = tracked.images or (json.dumps(of_dataset) if of_dataset else "")
    speed = f"{median(speeds):.0f}" if speeds else "-"
    return _Run(folder, metric, dataset, settings, value, epochs, speed)


def settings_of(folder: Path) -> dict[str, str]:
    """Returns a run's settings as `spelled` does; empty without a model, or with the incomplete one
    of a stopped job of version 1."""
    file = RunFolder(folder).model / "config.yaml"
    content = safe_load(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return {} if "unfinished" in content else spelled(content)


def spelled(values: Mapping[str, Any]) -> dict[str, str]:
    """Returns settings by their dotted keys, in Hydra's syntax."""
    return {key: shown(value) for key, value in flat(values).items()}


def _tracked(records: Sequence[Record], settings: Mapping[str, str]) -> Metric:
    """Returns the metric of a run of version 1.0, which did not record it; for your own task, the
    loss."""
    known = TASKS.get(settings.get("task.name", ""))
    metrics = (*(known.metrics if known else () if settings else ALL_METRICS[1:]), LOSS)
    recorded = [each for each in metrics if records and each.key in records[0]]
    named = [each for each in recorded if each.name == settings.get("task.best")]
    return [*named, *recorded, LOSS][0]


def _differing_settings(runs: Sequence[Mapping[str, str]]) -> list[str]:
    """Returns the keys whose values differ, those first that distinguish the runs best."""
    values = {key: [run.get(key, "") for run in runs] for run in runs for key in run}
    different = [key for key in values if len({*values[key]}) > 1]
    order = {key: number for number, key in enumerate(_TELLING)}
    different.sort(key=lambda key: (order.get(key, len(order)), -len({*values[key]})))
    # A recipe or dataset changes many settings at once: one of them is enough.
    divisions = {tuple(map(values[key].index, values[key])): key for key in reversed(different)}
    telling = {*divisions.values()}
    return sorted(
        different, key=lambda key: (key.partition(".")[0] in _WITHOUT_EFFECT, key not in telling)
    )


def _end_of(text: str, most: int = 18) -> str:
    return text if len(text) <= most else f"...{text[3 - most :]}"


if __name__ == "__main__":
    from entry_point.__main__ import end_with

    end_with("compare")
