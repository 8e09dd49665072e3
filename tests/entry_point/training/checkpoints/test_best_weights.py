"""Which checkpoint is the best, and which weights a finished run leaves in `model/`."""

from pathlib import Path

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


def progress(higher_is_better: bool) -> Progress:
    return Progress(3, Metric("x", "x", higher_is_better=higher_is_better))


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
    some, found = progress(higher_is_better), []
    for value in values:
        some.value = value
        found.append(some.end_epoch())
    assert found == best


@pytest.mark.parametrize("averaged", [(), ("optim.ema_decay=0.5",)])
def test_the_weights_of_the_best_checkpoint_are_exported_and_reported(
    averaged: tuple[str, ...], tmp_path: Path, photo_folder: Path
) -> None:
    overrides = [*OVERRIDES, *averaged]
    assert forked.run(tmp_path, photo_folder, [*overrides, "trainer.export=best"]) == 0
    losses = [r["val_loss"] for r in read_records(tmp_path) if "val_loss" in r]
    best = min(range(4), key=losses.__getitem__)
    assert best < 3, losses
    checkpoint = torch.load(tmp_path / "checkpoints" / "best.pt", weights_only=True)
    assert checkpoint["epoch"] == best + 1
    saved, exported = checkpoint["ema" if averaged else "model"], weights(tmp_path)
    assert all(torch.equal(exported[key], saved[key]) for key in saved)
    log = (tmp_path / "log").read_text()
    kind = "averaged " if averaged else ""
    assert f"exporting the best {kind}weights, of epoch {best + 1}" in log
    page = (tmp_path / "output" / "data" / "report.html").read_text()
    assert f"<b>{losses[best]:.4g}</b>validation loss" in page
    # The same command again, with the last weights.
    again = [*overrides, "trainer.export=last", "trainer.report=false"]
    assert forked.run(tmp_path, photo_folder, again) == 0
    newest = sorted((tmp_path / "checkpoints").glob("step-*.pt"))[-1]
    last = torch.load(newest, weights_only=True)["ema" if averaged else "model"]
    exported = weights(tmp_path)
    assert all(torch.equal(exported[key], last[key]) for key in last)


def test_the_raw_weights_are_exported_where_they_are_better_than_their_average(
    tmp_path: Path, photo_folder: Path
) -> None:
    """An average over a tenth of steps that go in one direction is behind."""
    net = "model.name=tests.own_models.tiny_net"
    overrides = [*OVERRIDES, net, "optim.lr=0.02", "optim.ema_decay=1", "trainer.report=false"]
    exported, lines = {}, {}
    for wanted in ("last", "best"):
        assert forked.run(tmp_path, photo_folder, [*overrides, f"trainer.export={wanted}"]) == 0
        exported[wanted] = weights(tmp_path)
        log = (tmp_path / "log").read_text().splitlines()
        lines[wanted] = [line for line in log if line.startswith("  validation loss")][-1]
    records = [record for record in read_records(tmp_path) if "val_loss" in record]
    every = [record[key] for record in records for key in ("val_loss", "val_loss_raw")]
    assert len(every) == 8 and records[-1]["val_loss_raw"] == min(every) < every[-2]
    # The closing line tells the value of the exported weights.
    last, best = f"{records[-1]['val_loss']:.4g}", f"{records[-1]['val_loss_raw']:.4g}"
    assert lines["last"].endswith(f"{last} (best {best})") and last != best
    assert lines["best"].endswith(f"{best} (best {best})")
    saved = torch.load(tmp_path / "checkpoints" / "best.pt", weights_only=True)
    assert (saved["epoch"], saved["weights"]) == (4, "raw")
    assert all(torch.equal(exported["best"][key], value) for key, value in saved["model"].items())
    assert all(torch.equal(exported["last"][key], value) for key, value in saved["ema"].items())
    assert "exporting the best raw weights, of epoch 4" in (tmp_path / "log").read_text()


def test_a_damaged_best_checkpoint_is_named(tmp_path: Path, photo_folder: Path) -> None:
    overrides = [*OVERRIDES, "trainer.report=false"]
    assert forked.run(tmp_path, photo_folder, overrides) == 0
    best = tmp_path / "checkpoints" / "best.pt"
    best.write_bytes(best.read_bytes()[:1000])
    again = [*overrides, "trainer.export=best"]
    assert forked.run(tmp_path, photo_folder, again) == ExitCode.FAILED
    failure = (tmp_path / "output" / "failure").read_text()
    assert f"{best} is damaged" in failure and "set trainer.export=last" in failure


@pytest.mark.parametrize("change", ["task.label_smoothing=0.2", "task.best=accuracy"])
def test_another_task_does_not_resume(change: str, tmp_path: Path, photo_folder: Path) -> None:
    overrides = [*OVERRIDES, "trainer.report=false", "trainer.epochs=1"]
    assert forked.run(tmp_path, photo_folder, overrides) == 0
    assert forked.run(tmp_path, photo_folder, [*overrides, change]) == ExitCode.USAGE
    failure = (tmp_path / "output" / "failure").read_text()
    assert f"{change}: the checkpoint was made with {change.partition('=')[0]}=" in failure
