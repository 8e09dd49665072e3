"""A project that was written for version 1.0 runs unchanged.

`tests/project_1_0` has the recipes of docs/adapt.md as commit 56ed78c printed them. Never change
them: they stand for code that this repository does not have.
"""

import json
import shutil
from pathlib import Path

import pytest

from tests.photographs import write_photo_folder
from tests.test_removal import ROOT, copy_without, run

PROJECT = ROOT / "tests" / "project_1_0"
PARTS = (
    *("model.name=project.my_model.net", "model.kwargs.width=32"),
    *("task.name=project.my_task.Alarm", "task.kwargs.watched=cat", "task.metrics=[watched]"),
    *("data.format=project.my_source.by_folder", "task.loss=project.my_loss.poly"),
    *("optim.name=project.my_optimizer.SignSGD", "optim.lr=1e-3"),
    *("optim.schedule=project.my_schedule.falling", "optim.schedule_kwargs.low=0.1"),
    *("loggers=[tensorboard,project.my_logger.Lowest]", "logger_kwargs.Lowest.key=val_loss"),
    *("augment.name=project.my_augmentation.Fade", "augment.kwargs.most=0.5"),
)
SMALL = (
    *("data.image_size=64", "data.resize=96", "trainer.batch_size=8", "trainer.epochs=1"),
    *("trainer.device=cpu", "pipeline.num_workers=1", "optim.warmup_epochs=0"),
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with that project, beside `photos`."""
    folder = tmp_path_factory.mktemp("of-1-0")
    write_photo_folder(folder / "photos", train=4, val=1)
    copy = copy_without((), folder / "copy")
    for file in PROJECT.glob("my_*.py"):
        shutil.copy(file, copy / "project")
    return copy


def train(copy: Path, name: str, *overrides: str) -> Path:
    """The run folder of a small job on the photographs."""
    root = copy.parent / name
    settings = [*SMALL, f"data.root={copy.parent / 'photos'}", *overrides]
    run(copy, ["-m", "entry_point.train", *settings], ML_ROOT=str(root))
    return root


def test_its_parts_train_together(copy: Path) -> None:
    root = train(copy, "together", *PARTS)
    records = (root / "output/data/metrics.jsonl").read_text().splitlines()
    last = [record for record in map(json.loads, records) if "val_loss" in record][-1]
    assert 0 <= last["val_watched"] <= 1
    lowest = float((root / "output/data/lowest_val_loss.txt").read_text())
    assert lowest == pytest.approx(last["val_loss"])
    assert (root / "model/model.safetensors").is_file()


def test_a_student_learns_from_the_model_of_a_run(copy: Path) -> None:
    teacher = train(copy, "teacher", "model.name=resnet18")
    student = (
        *("task.name=project.my_student.Distilled", "model.name=project.my_student.Student"),
        f"model.kwargs.weights={teacher / 'model'}",
    )
    assert (train(copy, "student", *student) / "model/model.safetensors").is_file()


def test_its_loop_reads_the_same_batches(copy: Path) -> None:
    run(copy, ["-c", (PROJECT / "loop.py").read_text()], PHOTOS=str(copy.parent / "photos"))
