"""What a regression needs to train with the default optimizer and rate."""

import re
from pathlib import Path

import pytest
import torch

from entry_point.config.train_config import load_train_config
from entry_point.job.devices import Devices
from entry_point.job.program import ExitCode
from entry_point.training.learner import Learner
from tests.entry_point.data.sources.table.labeled_tables import rows_of, write
from tests.entry_point.training import forked
from tests.entry_point.training.tasks.label_sources import labels, task_of
from tests.entry_point.training.training_jobs import read_records

CPU = Devices(torch.device("cpu"), None)
IMAGES, SIDE, BATCH, EPOCHS = 48, 16, 16, 3


@pytest.mark.parametrize(
    ("overrides", "clip_norm"),
    [
        (["task=regression"], 1.0),
        (["task=regression", "optim.clip_norm=5"], 5.0),
        (["task=multilabel"], None),
        ([], None),
    ],
)
def test_gradients_of_a_regression_are_clipped(
    overrides: list[str], clip_norm: float | None
) -> None:
    assert load_train_config(["data=folder", *overrides])[0].optim.clip_norm == clip_norm


def test_a_resnet_learns_numbers_of_a_large_scale_in_three_epochs() -> None:
    """Better than their mean, whose squared error is their variance."""
    torch.manual_seed(0)
    shares = torch.rand(IMAGES, 1)
    images = shares[:, :, None, None] * 2 - 1 + 0.3 * torch.randn(IMAGES, 3, SIDE, SIDE)
    numbers = 2e5 * shares - 1e5
    overrides = ["task=regression", "trainer.seed=2", f"trainer.epochs={EPOCHS}"]
    config, _ = load_train_config(overrides)
    task = task_of(labels("numbers", ["share"], numbers), *overrides)
    learner = Learner(config, CPU, task, IMAGES // BATCH, Path())
    for step in range(EPOCHS * IMAGES // BATCH):
        chosen = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(step))[:BATCH]
        assert learner.loss(images[chosen], numbers[chosen], step).isfinite()
        learner.update()
    with torch.no_grad():  # in training mode: few steps make poor estimates of batch statistics
        answers = task.head(learner.model(images))
    assert (answers - numbers).square().mean() < numbers.var()


def late(epoch: float, _epochs: int) -> float:
    """A schedule that trains from the second epoch on."""
    return 1e-6 if epoch < 1 else 1.0


def test_the_advice_for_a_diverged_run_works(photo_folder: Path, tmp_path: Path) -> None:
    rows = [{"path": row["path"], "split": row["split"], "place": float(number)}
            for number, row in enumerate(rows_of(photo_folder))]  # fmt: skip
    table = write(tmp_path / "table.csv", rows)
    overrides = [
        *("task=regression", "data.format=manifest", "data.table.labels=[place]"),
        f"data.images={photo_folder}",
    ]
    diverging = [*overrides, "optim.lr=100", "optim.clip_norm=1e9", "trainer.epochs=20"]
    diverging.append(
        "optim.schedule=tests.entry_point.training.tasks.test_regression_defaults.late"
    )
    assert forked.run(tmp_path / "first", table, diverging) == ExitCode.FAILED
    log = (tmp_path / "first" / "log").read_text()
    assert "Traceback" not in log
    (line,) = [line for line in log.splitlines() if line.startswith("train: loss=")]
    assert "lower optim.lr=100, or optim.clip_norm=1e+09; use another name to restart" in line
    (weights,) = re.findall(r"model\.weights=\S+best.pt$", line)
    better = [*overrides, "optim.lr=0.01", "optim.clip_norm=1", "trainer.epochs=1", weights]
    assert forked.run(tmp_path / "again", table, better) == 0
    assert "val_loss" in read_records(tmp_path / "again")[-1]


def test_a_resumed_regression_answers_in_the_scale_that_its_weights_have_learned(
    photo_folder: Path, tmp_path: Path
) -> None:
    """A slip in the table is mended between two starts."""
    rows = [{"path": row["path"], "split": row["split"], "place": float(number)}
            for number, row in enumerate(rows_of(photo_folder))]  # fmt: skip
    place, rows[0]["place"] = rows[0]["place"], 1e6
    overrides = [
        *("task=regression", "data.format=manifest", "data.table.labels=[place]"),
        *(f"data.images={photo_folder}", "trainer.export=best"),
    ]
    run, scales = tmp_path / "run", list[str]()
    for epochs in (1, 1, 2):
        table = write(tmp_path / "table.csv", rows)
        assert forked.run(run, table, [*overrides, f"trainer.epochs={epochs}"]) == 0
        scales.append((run / "model" / "head.json").read_text())
        rows[0]["place"] = place
    assert len({*scales}) == 1
