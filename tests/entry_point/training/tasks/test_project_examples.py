"""The examples of project/ in one job: a model, a task, an augmentation, a source, a logger."""

import csv
import shutil
from pathlib import Path

import pytest

from tests import commands
from tests.entry_point.prediction.predicted import rows as predicted
from tests.entry_point.training import forked
from tests.entry_point.training.training_jobs import read_records

EXAMPLES = (
    "data.format=project.sources.by_file_name",
    "data.kwargs.val_fraction=0.25",
    "model.name=project.models.small_net",
    "task.name=project.tasks.OrderedClasses",
    "task.metrics=[distance]",
    "augment.name=project.augmentations.Noise",
    "loggers=[project.loggers.CsvLogger]",
    "trainer.report=true",
)


def test_they_train_together_and_answer_with_probabilities_of_classes(
    photo_folder: Path, tmp_path: Path
) -> None:
    flat, run = tmp_path / "flat", tmp_path / "run"
    flat.mkdir()
    for file in photo_folder.rglob("*.jpg"):
        split, name = file.parts[-3:-1]
        shutil.copy(file, flat / f"{name}_{split}-{file.name}")
    assert forked.run(run, flat, EXAMPLES) == 0, (run / "log").read_text()
    evaluations = [record for record in read_records(run) if "val_loss" in record]
    assert [record["epoch"] for record in evaluations] == [0, 1]
    assert all(0 <= record["val_distance"] <= 7 for record in evaluations)
    with (run / "output/data/metrics.csv").open() as rows:
        logged = [float(row["value"]) for row in csv.DictReader(rows) if row["name"] == "val_loss"]
    assert logged == pytest.approx([record["val_loss"] for record in evaluations])
    output = tmp_path / "output"
    where = [f"model_dir={run / 'model'}", f"input={flat}", f"output_dir={output}"]
    assert commands.predict(where) == 0
    answers = predicted(output)
    classes = {file.name.rpartition("_")[0] for file in flat.iterdir()}
    assert len(answers) == 72 and {answer["class"] for answer in answers} <= classes
