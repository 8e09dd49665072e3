"""The log lines, and the regular expressions with which SageMaker reads them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entry_point.config.task_config import MOST_OWN_METRICS
from entry_point.job.known_tasks import LOSS, TASKS
from entry_point.job.metrics_line import (
    METRIC_REGEXES,
    METRICS,
    metric_regexes,
    metrics_line,
)

TRAINING_LINE = (
    "[metrics] epoch=2 step=140 loss=1.25e-05 images_per_s=812.3 data_wait_pct=3.1 lr=0.0954915"
)
VALIDATION_LINE = "[metrics] epoch=2 step=150 val_loss=0.25 val_accuracy=0.9725"


def found(line: str) -> dict[str, float]:
    matches = {name: re.search(regex, line) for name, regex in METRIC_REGEXES.items()}
    return {name: float(match[1]) for name, match in matches.items() if match}


def test_every_number_of_a_training_line_is_found() -> None:
    assert found(TRAINING_LINE) == {
        "epoch": 2,
        "step": 140,
        "train:loss": 1.25e-05,
        "train:images_per_s": 812.3,
        "train:data_wait_pct": 3.1,
        "train:lr": 0.0954915,
    }


def test_golden_validation_line_is_not_mistaken_for_a_training_line() -> None:
    assert found(VALIDATION_LINE) == {
        "epoch": 2,
        "step": 150,
        "validation:loss": 0.25,
        "validation:accuracy": 0.9725,
    }


def test_only_a_marked_line_has_metrics() -> None:
    assert not found(TRAINING_LINE.removeprefix("[metrics] "))
    assert not found(f"photos/{TRAINING_LINE}.jpg: damaged")


def test_the_expressions_are_within_sagemakers_limits() -> None:
    own = [f"own_{number}" for number in range(MOST_OWN_METRICS)]
    regexes = metric_regexes("project.tasks.Own", own)
    assert len(METRIC_REGEXES) + MOST_OWN_METRICS == len(regexes) <= 40
    assert all(len(regex) <= 500 for regex in regexes.values())
    assert all(re.compile(regex).groups == 1 for regex in regexes.values())


@pytest.mark.parametrize("task", TASKS)
def test_every_metric_of_a_task_is_read_back(task: str) -> None:
    printed = (LOSS, *TASKS[task].metrics)
    line = metrics_line({metric.key: 0.5 for metric in printed})
    regexes = metric_regexes(task).items()
    read = {name: match[1] for name, regex in regexes if (match := re.search(regex, line))}
    assert read == {f"validation:{metric.name}": "0.5" for metric in printed}
    assert {name for name in metric_regexes(task) if name.startswith("validation:")} == {*read}


def test_an_own_tasks_metrics_are_read_too() -> None:
    line = metrics_line({"epoch": 1, "val_kappa": 0.25})
    match = re.search(metric_regexes("project.tasks.Own", ["kappa"])["validation:kappa"], line)
    assert match and match[1] == "0.25"


def test_a_loss_of_nan_is_not_a_metric() -> None:
    assert "train:loss" not in found(metrics_line({"epoch": 1, "loss": float("nan")}))


@given(st.dictionaries(st.sampled_from(sorted(METRICS.values())), st.floats(-1e9, 1e9)))
def test_every_number_written_is_read_back(values: dict[str, float]) -> None:
    read = found(metrics_line(values))
    for name, key in METRICS.items():
        if key in values:
            assert read[name] == float(f"{values[key]:.6g}")
