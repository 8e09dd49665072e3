"""The trials of a tuning job, as a table."""

from collections.abc import Iterator, Mapping
from typing import Any

_COLUMNS = ("trial", "state", "objective", "values")


def trial_table(sagemaker: Any, name: str) -> list[str]:
    """One line for each trial: name, state, objective and values, the best first."""
    trials = list(_trials(sagemaker, name))
    if not trials:
        return []
    rows = [_COLUMNS, *(_row(trial) for trial in sorted(trials, key=_place))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _trials(sagemaker: Any, name: str) -> Iterator[Mapping[str, Any]]:
    more: dict[str, str] = {}
    while True:
        page = sagemaker.list_training_jobs_for_hyper_parameter_tuning_job(
            HyperParameterTuningJobName=name, MaxResults=100, **more
        )
        yield from page["TrainingJobSummaries"]
        if not page.get("NextToken"):
            return
        more = {"NextToken": page["NextToken"]}


def _place(trial: Mapping[str, Any]) -> tuple[bool, float, str]:
    """The best objective first, then those without one."""
    metric = _metric(trial)
    value = metric.get("Value")
    best_is_low = metric.get("Type") == "Minimize"
    key = 0.0 if value is None else value if best_is_low else -value
    return (value is None, key, trial["TrainingJobName"])


def _metric(trial: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = trial.get("FinalHyperParameterTuningJobObjectiveMetric", {})
    return found


def _row(trial: Mapping[str, Any]) -> tuple[str, str, str, str]:
    value = _metric(trial).get("Value")
    tuned = trial.get("TunedHyperParameters", {})
    return (
        trial["TrainingJobName"],
        trial["TrainingJobStatus"],
        "-" if value is None else f"{value:.6g}",
        " ".join(f"{key}={tuned[key]}" for key in sorted(tuned)),
    )
