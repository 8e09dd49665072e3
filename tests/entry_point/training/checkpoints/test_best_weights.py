"""Which checkpoint is the best, and which weights a finished run leaves in `model/`."""

from pathlib import Path
from typing import Any

import pytest
import torch

from entry_point.job.known_tasks import Metric
from entry_point.job.program import ExitCode
from entry_point.training.progress import Progress
from tests.entry_point.training import forked
from tests.entry_point.training.checkpoints.test_interrupted_runs import weights
from tests.entry_point.training.training_jobs import read_records

# The rate rises until later epochs are worse than the first ones.
OVERRIDES = (
    "model.name=tests.own_models.tiny_net_with_state",
    "trainer.epochs=4",
    "trainer.report=true",
    "optim.lr=20",
    "optim.warmup_epochs=4",
    "task.best=loss",
)


@pytest.mark.parametrize(
    ("higher_is_better", "values", "best"),
    [
        (True, [0.0, 0.5, 0.5, 0.4, 0.6], [True, True, False, False, True]),
        (False, [9.0, 3.0, 3.0, 4.0, 2.0], [True, True, False, False, True]),
        (False, [None, float("nan"), -1.0, None], [False, False, True, False]),
    ],
)
def test_the_best_epoch_is_by_the_metrics_direction(
    higher_is_better: bool, values: list[float | None], best: list[bool]
) -> None:
    some, found = Progress(3, Metric("x", "x", higher_is_better=higher_is_better)), []
    for value in values:
        some.value = value
        found.append(some.end_epoch())
    assert found == best


def test_a_tracked_metric_that_the_task_does_not_measure_is_named(
    tmp_path: Path, photo_folder: Path
) -> None:
    overrides = ["task.name=tests.own_tasks.Unmeasured", "trainer.epochs=1"]
    assert forked.run(tmp_path, photo_folder, overrides) == 0
    assert (tmp_path / "log").read_text().count("val_recall cannot decide which epoch is the") == 1


def test_the_weights_of_the_best_checkpoint_are_exported_and_reported(
    tmp_path: Path, photo_folder: Path
) -> None:
    overrides = [*OVERRIDES, "optim.ema_decay=0.5"]
    assert forked.run(tmp_path, photo_folder, [*overrides, "trainer.export=best"]) == 0
    losses = [r["val_loss"] for r in read_records(tmp_path) if "val_loss" in r]
    best = min(range(4), key=losses.__getitem__)
    assert best < 3, losses
    saved = torch.load(tmp_path / "checkpoints" / "best.pt", weights_only=True)
    assert saved["progress"]["epoch"] == best + 1
    assert_exported(tmp_path, saved)
    report = tmp_path / "output" / "data" / "report.html"
    assert f"<b>{losses[best]:.4g}</b>validation loss" in report.read_text()
    # The same command again, with the last weights.
    again = [*overrides, "trainer.export=last", "trainer.report=false"]
    assert forked.run(tmp_path, photo_folder, again) == 0
    newest = sorted((tmp_path / "checkpoints").glob("step-*.pt"))[-1]
    assert_exported(tmp_path, torch.load(newest, weights_only=True))
    # And once more with the best, of which this start has no evaluation.
    report.unlink(missing_ok=True)
    assert forked.run(tmp_path, photo_folder, [*overrides, "trainer.export=best"]) == 0
    log = (tmp_path / "log").read_text()
    assert log.count(f"exporting the best weights, of epoch {best + 1}") == 1
    assert_exported(tmp_path, saved)
    assert f"<b>{losses[best]:.4g}</b>validation loss" in report.read_text()


def assert_exported(root: Path, checkpoint: dict[str, Any]) -> None:
    averages, exported = checkpoint["learner"]["ema"], weights(root)
    assert all(torch.equal(exported[key], averages[key]) for key in averages)


def test_a_damaged_best_checkpoint_is_named(tmp_path: Path, photo_folder: Path) -> None:
    overrides = [*OVERRIDES, "trainer.report=false"]
    assert forked.run(tmp_path, photo_folder, overrides) == 0
    best = tmp_path / "checkpoints" / "best.pt"
    best.write_bytes(best.read_bytes()[:1000])
    again = [*overrides, "trainer.export=best"]
    assert forked.run(tmp_path, photo_folder, again) == ExitCode.FAILED
    failure = (tmp_path / "output" / "failure").read_text()
    assert f"{best} is damaged" in failure and "set trainer.export=last" in failure
