"""`make evaluate`: the metrics of a finished run's model, on any of the data that it knows."""

import base64
import csv
import io
import json
import math
import re
import shutil
import sys
import tarfile
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from PIL import Image

from entry_point import evaluate
from entry_point.job.program import ExitCode
from tests import commands, forkserver
from tests.entry_point.data.packing.pack_command import pack
from tests.entry_point.data.sources.table.labeled_tables import rows_of, write
from tests.entry_point.training import forked
from tests.entry_point.training.results.conftest import OVERRIDES
from tests.entry_point.training.training_jobs import read_records
from tests.failing_disk import Disk

BY_FOLDER = """
from entry_point.data.sources.source import FileSource

def by_folder(root, split):
    files = sorted((root / split).glob("*/*.jpg"))
    classes = sorted({file.parent.name for file in files})
    return FileSource(files, [classes.index(file.parent.name) for file in files], classes)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, photo_folder: Path) -> Path:
    root = tmp_path_factory.mktemp("run")
    data = [f"data.root={photo_folder}", "trainer.report=false"]
    assert forked.run(root, photo_folder, [*OVERRIDES, *data]) == 0, (root / "log").read_text()
    return root


def results(run: Path, output: Path, *arguments: str) -> dict[str, Any]:
    where = [f"model_dir={run / 'model'}", f"output_dir={output}"]
    quiet = ["batch_size=7", "pipeline=pillow"]
    assert commands.evaluate([*where, *quiet, *arguments]) == ExitCode.FINISHED
    return read(output)


@pytest.fixture(scope="module")
def evaluation(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an evaluation of the run's model leaves."""
    output = tmp_path_factory.mktemp("evaluation")
    results(run, output)
    return output


def read(evaluation: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((evaluation / "evaluation.json").read_text())
    return found


def test_the_metrics_are_those_of_the_training(run: Path, evaluation: Path) -> None:
    last = next(record for record in reversed(read_records(run)) if "val_loss" in record)
    found = read(evaluation)
    assert (found["images"], found["damaged"], found["split"]) == (24, 0, "val")
    expected = {f"val_{name}": value for name, value in found["metrics"].items()}
    assert "val_accuracy" in expected
    assert expected == {name: pytest.approx(last[name], rel=1e-5) for name in expected}
    page = (evaluation / "evaluation.html").read_text()
    for words in ("Confusion matrix", "Calibration", "Expected calibration error", "Worst pred"):
        assert words in page


def test_the_archive_of_a_job_has_the_metrics_of_its_folder(
    run: Path, evaluation: Path, tmp_path: Path
) -> None:
    """examples/pipeline.ipynb reads its `metrics.accuracy`."""
    model = tmp_path / "model.tar.gz"
    with tarfile.open(model, "w:gz") as tar:
        tar.add(run / "model", ".")
    found = results(run, tmp_path, f"model_dir={model}")
    assert found["metrics"] == read(evaluation)["metrics"]


def test_a_model_is_measured_on_no_image_that_it_was_trained_on(
    tmp_path: Path, photo_folder: Path
) -> None:
    """Models of versions that did not top up small classes have no such key in config.yaml."""
    data = photo_folder / "train"
    settings = [*OVERRIDES, "trainer.report=false", "trainer.epochs=1"]
    assert forked.run(tmp_path / "run", data, settings) == 0
    assert " 39 training and 9 validation images" in (tmp_path / "run/log").read_text()
    where = (tmp_path / "run", tmp_path / "evaluation")
    assert results(*where)["images"] == 9
    file = tmp_path / "run/model/config.yaml"
    text = file.read_text()
    assert text.count("  val_top_up: classes\n") == 1
    file.write_text(text.replace("  val_top_up: classes\n", ""))
    assert results(*where)["images"] == 4
    elsewhere = shutil.copytree(data, tmp_path / "copy")
    moved = (f"data.root={elsewhere}", "data.val_fraction=0.1")
    assert results(*where, *moved)["images"] == 4
    assert results(*where, *moved, "data.val_top_up=classes")["images"] == 9


def test_a_folder_that_cannot_be_written_is_named_before_images_are_evaluated(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluate, "evaluate", None)
    where = [f"model_dir={run / 'model'}", "output_dir=/proc/self/results"]
    assert commands.evaluate(where) == ExitCode.USAGE
    line = "evaluate: output_dir=/proc/self/results cannot be written: No such file or directory: "
    assert capsys.readouterr().err == f"{line}/proc/self/results: choose a writable folder\n"


def test_the_answers_are_listed_with_the_largest_loss_first(
    evaluation: Path, photo_folder: Path
) -> None:
    found = read(evaluation)
    with (evaluation / "predictions.csv").open(newline="") as lines:
        rows = [*csv.DictReader(lines)]
    assert [*rows[0]] == ["path", "label", "answer", "probability", "loss"]
    losses = [float(row["loss"]) for row in rows]
    assert losses == sorted(losses, reverse=True) and len({row["path"] for row in rows}) == 24
    assert fmean(losses) == pytest.approx(found["metrics"]["loss"], rel=1e-6)
    assert all(Path(row["path"]).parent == photo_folder / "val" / row["label"] for row in rows)
    right = [row["label"] == row["answer"] for row in rows]
    assert fmean(right) == pytest.approx(found["metrics"]["accuracy"])
    for row in rows:  # the probability of the answer: of the label, its logarithm is the loss
        if row["label"] == row["answer"]:
            assert float(row["probability"]) == pytest.approx(math.exp(-float(row["loss"])))
    of_classes = {row["class"]: row for row in found["tables"]["Classes"]}
    for name, row in of_classes.items():
        hits = [hit for hit, each in zip(right, rows, strict=True) if each["label"] == name]
        assert row["images"] == len(hits) and row["recall"] == pytest.approx(fmean(hits))
    matrix = {row[""]: row for row in found["tables"]["Confusion matrix"]}
    pairs = Counter((row["label"], row["answer"]) for row in rows)
    assert all(matrix[label][answer] == count for (label, answer), count in pairs.items())


def test_the_output_has_the_metrics_and_no_other_packages_log(run: Path, tmp_path: Path) -> None:
    where = [f"model_dir={run / 'model'}", f"output_dir={tmp_path}"]
    done = forkserver.start(
        ["-m", "entry_point", "evaluate", *where], tmp_path / "log", errors=tmp_path / "errors"
    )
    output, errors = done.communicate()
    assert done.returncode == 0, errors
    *lines, last = output.splitlines()
    metrics = [line.split("  ")[1] for line in lines if line.startswith("  ")]
    assert metrics == ["accuracy", "balanced accuracy", "top-5 accuracy", "loss"], output
    measured = f"24 images of val evaluated with {run / 'model'}"
    written = f"{tmp_path}/evaluation.html, beside evaluation.json and predictions.csv"
    assert last == f"{measured}; written to {written}"


def test_another_dataset_may_lack_classes(run: Path, photo_folder: Path, tmp_path: Path) -> None:
    """Classes are compared by name: without the first, all others have other numbers."""
    root = tmp_path / "other"
    shutil.copytree(photo_folder, root)
    missing = sorted(path.name for path in (root / "val").iterdir())[0]
    for split in ("train", "val"):
        shutil.rmtree(root / split / missing)
    everything = results(run, tmp_path / "all", "split=train")
    some = results(run, tmp_path / "some", "split=train", f"data.root={root}")
    assert (everything["images"], some["images"]) == (48, 42)
    right = [round(each["images"] * each["metrics"]["accuracy"]) for each in (everything, some)]
    assert 0 <= right[0] - right[1] <= 6


def test_the_only_split_is_measured_and_of_several_without_val_one_is_asked_for(
    run: Path, photo_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(photo_folder / "val", (other := tmp_path / "other") / "test")
    where = (run, tmp_path / "output", f"data.root={other}")
    assert results(*where)["images"] == 24
    shutil.copytree(photo_folder / "train", other / "train")
    command = [f"model_dir={run / 'model'}", f"output_dir={tmp_path / 'output'}", where[2]]
    assert commands.evaluate(command) == ExitCode.USAGE
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.endswith("has no split val: choose split=train or split=test or split=all")
    assert results(*where, "split=all")["images"] == 72


def test_a_model_trained_with_tf32_is_evaluated_without_a_gpu(run: Path, tmp_path: Path) -> None:
    changed(run, tmp_path, "precision: auto", "precision: tf32")
    assert results(tmp_path, tmp_path / "output")["images"] == 24


def test_the_input_channel_is_named(
    run: Path, photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed(run, tmp_path, f"root: {photo_folder}", "root: null")
    channel = tmp_path / "input/data/training"
    channel.parent.mkdir(parents=True)
    channel.symlink_to(photo_folder)
    monkeypatch.setattr(evaluate, "CONTAINER_ROOT", tmp_path)
    assert results(tmp_path, tmp_path / "output")["data"] == "the input channel"
    assert "val of the input channel" in (tmp_path / "output/evaluation.html").read_text()


def changed(run: Path, other: Path, old: str, new: str) -> None:
    """Copy the model to `other` with another text in its configuration."""
    shutil.copytree(run / "model", other / "model")
    config = other / "model/config.yaml"
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new))


def test_the_results_say_what_the_model_has_reached(evaluation: Path) -> None:
    reached = read(evaluation)["reached"]
    assert reached.startswith("epoch 8 of 8") and ", validation accuracy " in reached
    assert reached in (evaluation / "evaluation.html").read_text()


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_columns_may_come_in_another_order_and_none_may_be_missing(
    task: str, photo_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = ("tall", "dark", "near")
    rows = [
        {"path": row["path"], "split": row["split"]}
        | {name: int(number % (place + 2) == 0) for place, name in enumerate(columns)}
        for number, row in enumerate(rows_of(photo_folder))
    ]
    table = write(tmp_path / "table.csv", rows)
    overrides = ["data=manifest", f"data.images={photo_folder}", f"task={task}"]
    overrides += ["data.table.labels=[tall,dark,near]", "trainer.report=false"]
    assert forked.run(tmp_path, table, [*OVERRIDES, *overrides]) == 0
    rows = [
        row for row in rows if sum(row[name] for name in columns) == 1
    ]  # as if each had one class
    table = write(tmp_path / "ones.csv", rows)
    where = [f"data.root={table}", f"data.images={photo_folder}", "split=train"]
    one, other = (
        results(tmp_path, tmp_path / order[:4], *where, f"data.table.labels=[{order}]")
        for order in ("tall,dark,near", "near,tall,dark")
    )
    assert one["metrics"] == pytest.approx(other["metrics"])
    where += [f"model_dir={tmp_path / 'model'}", f"output_dir={tmp_path / 'none'}"]
    assert commands.evaluate([*where, "data.table.labels=[near,tall]"]) == ExitCode.USAGE
    assert "the dataset lacks dark, which the model predicts" in capsys.readouterr().err


def test_a_label_that_no_list_has_is_absent_from_all_images(
    photo_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[dict[str, Any]] = [
        {"path": row["path"], "split": row["split"], "label": ["tall", "dark"][: number % 3]}
        for number, row in enumerate(rows_of(photo_folder))
    ]
    table = write(tmp_path / "lists.jsonl", rows)
    overrides = ["data=manifest", f"data.images={photo_folder}", "task=multilabel"]
    assert forked.run(tmp_path, table, [*OVERRIDES, *overrides, "trainer.report=false"]) == 0
    without = [row for row in rows if "dark" not in row["label"]]
    both = [{**row, "tall": len(row["label"]), "dark": 0} for row in without]
    where = [f"data.images={photo_folder}", "split=val"]
    columns = write(tmp_path / "columns.csv", [{**row, "label": ""} for row in both])
    named = [f"data.root={columns}", "data.table.labels=[tall,dark]"]
    one = results(tmp_path, tmp_path / "columns", *where, *named)
    lists = write(tmp_path / "rare.jsonl", without)
    other = results(tmp_path, tmp_path / "lists", *where, f"data.root={lists}")
    assert one["metrics"] == other["metrics"] and one["images"] == other["images"] > 0

    images = f"images={photo_folder}"
    assert pack(lists, tmp_path / "lists-packed", images) == ExitCode.FINISHED
    few = [f"data.root={tmp_path / 'lists-packed'}", f"model_dir={tmp_path / 'model'}"]
    assert commands.evaluate([*few, f"output_dir={tmp_path / 'none'}"]) == ExitCode.USAGE
    advice = "lacks dark, which the model predicts: pack it again, from a table with a column for"
    assert advice in capsys.readouterr().err
    packed = tmp_path / "packed"
    assert pack(columns, packed, images, "table.labels=[tall,dark]") == ExitCode.FINISHED
    assert results(tmp_path, tmp_path / "again", f"data.root={packed}")["metrics"] == one["metrics"]

    empty = write(tmp_path / "empty.jsonl", [{**row, "label": []} for row in without])
    none = results(tmp_path, tmp_path / "empty", *where, f"data.root={empty}")
    assert none["images"] == other["images"] and "map" not in none["metrics"]

    vectors = [{**row, "label": [int(bool(row["label"])), 0]} for row in without]
    ones = write(tmp_path / "vectors.jsonl", vectors)
    unlike = [f"model_dir={tmp_path / 'model'}", f"output_dir={tmp_path / 'none'}", *where]
    assert commands.evaluate([*unlike, f"data.root={ones}"]) == ExitCode.USAGE
    assert "the model does not know label 0, label 1: remove or ren" in capsys.readouterr().err


def test_pictures_show_what_the_model_saw(run: Path, photo_folder: Path, tmp_path: Path) -> None:
    levels = np.linspace(0, 4095, 64 * 64).reshape(64, 64).astype(np.uint16)
    for name in sorted(each.name for each in (photo_folder / "val").iterdir()):
        (tmp_path / "gray" / name).mkdir(parents=True)
        Image.fromarray(levels).save(tmp_path / "gray" / name / "0.png")
    results(run, tmp_path / "out", f"data.root={tmp_path / 'gray'}", "data.gray_bits=12")
    page = (tmp_path / "out/evaluation.html").read_text()
    pictures = re.findall(r"data:image/jpeg;base64,([^\"]+)", page)
    for picture in pictures:
        shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(picture))), float)
        assert shown.mean() == pytest.approx(127, abs=3)
    assert pictures


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("model_dir=/no/such", "model_dir=/no/such: there is no such folder;"),
        ("split=tset", "split=tset: Input should be"),
        ("data=folder", "data=folder: is a group of settings: set data.KEY=VALUE"),
        ("data=folder data.gray_bits=12", "data=folder: is a group of settings: set data.KEY=VAL"),
        ("data.rot=x", "data.rot=x: no such key; did you mean data.root?"),
        ("data.format=null", "data.format=null: Input should be"),
        ("data.root={other}", "the model does not know strangers: remove or rename these images"),
        ("data.root={several}", "the model learned from one class per image, but the dataset hold"),
    ],
)
def test_a_mistake_is_one_line(
    argument: str,
    words: str,
    run: Path,
    photo_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = tmp_path / "other"
    for split in ("train", "val"):
        shutil.copytree(photo_folder / split / "cat", other / split / "strangers")
        shutil.copytree(photo_folder / split / "cat", other / split / "cat")
    several = write(other / "train.csv", [{"path": "train/cat", "label": ["cat", "dog"]}])
    command = [f"model_dir={run / 'model'}", f"output_dir={tmp_path / 'output'}"]
    arguments = argument.format(other=other, several=several).split()
    assert commands.evaluate([*command, *arguments]) == ExitCode.USAGE
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line]
    assert line.startswith("evaluate: ") and words in line


def test_a_source_that_only_the_model_folder_names_is_not_run(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(run, tmp_path, "format: folder", "format: os.system")
    assert commands.evaluate([f"model_dir={tmp_path / 'model'}"]) == ExitCode.USAGE
    assert "data.format=os.system: comes from" in capsys.readouterr().err


def test_a_source_that_was_written_after_the_model_is_found(
    run: Path, photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's folder has another `project`, without it."""
    here = tmp_path / "project"
    here.mkdir()
    (here / "__init__.py").touch()
    (here / "later.py").write_text(BY_FOLDER)
    for name in [name for name in sys.modules if name.partition(".")[0] == "project"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    where = [f"data.root={photo_folder}", "data.format=project.later.by_folder"]
    assert results(run, tmp_path / "output", *where)["images"] == 24


def test_an_evaluation_leaves_no_image_out_because_of_a_failing_disk(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    disk.fails("val/cat/001.jpg")
    where = [f"model_dir={run / 'model'}", f"output_dir={tmp_path}", "data.max_bad_fraction=1"]
    assert commands.evaluate([*where, "pipeline=pillow"]) == ExitCode.FAILED
    assert "val/cat/001.jpg: could not be read" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]
    disk.times = 2
    assert results(run, tmp_path)["damaged"] == 0
