"""Whole jobs on tables of labels and of numbers: killed, resumed, predicted."""

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn import metrics

from tests import commands
from tests.entry_point.data.sources.table.labeled_tables import rows_of, write
from tests.entry_point.prediction import predicted
from tests.entry_point.training import forked
from tests.entry_point.training.checkpoints.test_interrupted_runs import assert_same_end
from tests.entry_point.training.training_jobs import read_records

OVERRIDES = (
    "data.format=manifest",
    "model.name=project.models.small_net",
    "trainer.epochs=2",
    "trainer.batch_size=12",
    "trainer.log_every_steps=1",
    "trainer.checkpoint_every_steps=1",
    "trainer.report=true",
    "optim.mixup_alpha=0.2",
    "optim.ema_decay=0.9",
)
STEPS = 8
NUMBERS = ("width", "place")


def labels_of(row: dict[str, Any], number: int) -> dict[str, Any]:
    """Two labels, one of them the class; some images have none."""
    every_third = ["third"] if number % 3 == 0 else []
    return {"labels": [row["label"], *every_third] if number % 5 else every_third}


def numbers_of(row: dict[str, Any], number: int) -> dict[str, Any]:
    return {"width": 1000.0 + 10 * len(row["label"]), "place": number / 7}


@pytest.fixture(scope="module", params=["multilabel", "regression"])
def job(request: pytest.FixtureRequest, photo_folder: Path, tmp_path_factory: Any) -> Any:
    """The task, its overrides, and the rows of its table."""
    describe = labels_of if request.param == "multilabel" else numbers_of
    rows = [
        {"path": row["path"], "split": row["split"], **describe(row, number)}
        for number, row in enumerate(rows_of(photo_folder))
    ]
    table = write(tmp_path_factory.mktemp(request.param) / "table.csv", rows)
    overrides = [*OVERRIDES, f"task={request.param}", f"data.images={photo_folder}"]
    if request.param == "regression":
        overrides.append(f"data.table.labels=[{','.join(NUMBERS)}]")
    return request.param, table, overrides, rows


@pytest.fixture(scope="module")
def finished(job: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of an uninterrupted job."""
    _, table, overrides, _ = job
    root = tmp_path_factory.mktemp("finished")
    assert forked.run(root, table, overrides) == 0, (root / "log").read_text()
    return root


def test_a_killed_job_ends_bit_identical(job: Any, finished: Path, tmp_path: Path) -> None:
    _, table, overrides, _ = job
    overrides = [*overrides, "trainer.report=false"]
    forked.run_until_step(tmp_path, table, overrides, 5, signal.SIGKILL)
    assert forked.run(tmp_path, table, overrides) == 0, (tmp_path / "log").read_text()
    assert_same_end(tmp_path, finished)
    steps = [r["step"] for r in read_records(tmp_path) if "loss" in r]
    assert steps == list(range(1, STEPS + 1))


def last_evaluation(root: Path) -> dict[str, float]:
    found = [r for r in read_records(root) if "val_loss" in r][-1]
    names = [k for k in found if k.startswith("val_")]
    return {k: found[k] for k in names if k != "val_loss"}


def test_the_metrics_are_scikit_learns_of_the_predictions(
    job: Any, finished: Path, photo_folder: Path, tmp_path: Path
) -> None:
    task, _, _, rows = job
    arguments = [f"model_dir={finished / 'model'}", f"input={photo_folder / 'val'}"]
    settings = ("pipeline=pillow", "pipeline.num_workers=0", f"output_dir={tmp_path}")
    assert commands.predict([*arguments, *settings]) == 0
    names = predicted.score_names(tmp_path)
    true = {row["path"]: row for row in rows}
    paired = [(true[f"val/{line['path']}"], line) for line in predicted.rows(tmp_path)]
    values = np.array([line["scores"] for _, line in paired])
    find = labels_found if task == "multilabel" else numbers_found
    expected = find(paired, values, names)
    found = last_evaluation(finished)
    for name, value in expected.items():
        assert found[f"val_{name}"] == pytest.approx(value, rel=1e-3)
    page = (finished / "output" / "data" / "report.html").read_text()
    assert f"<h2>{'Labels' if task == 'multilabel' else 'Targets'}</h2>" in page
    assert "Worst predictions" in page


Paired = Sequence[tuple[dict[str, Any], dict[str, Any]]]
"""Rows of the table, each with its prediction."""


def labels_found(paired: Paired, values: NDArray[Any], names: list[str]) -> dict[str, float]:
    targets = np.array([[name in row["labels"] for name in names] for row, _ in paired])
    for (_, line), row in zip(paired, values >= 0.5, strict=True):
        assert line["labels"] == list(np.array(names)[row])
    micro = metrics.f1_score(targets, values >= 0.5, average="micro", zero_division=0)
    return {"f1_micro": micro}


def numbers_found(paired: Paired, values: NDArray[Any], names: list[str]) -> dict[str, float]:
    targets = np.array([[row[name] for name in names] for row, _ in paired])
    return {"mae": metrics.mean_absolute_error(targets, values)}
