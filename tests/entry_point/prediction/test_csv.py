"""`make predict ARGS="csv=true ..."`: the rows for a spreadsheet."""

import csv
import shutil
from pathlib import Path

import pytest

from entry_point.job.program import ExitCode
from tests import commands
from tests.entry_point.prediction.predicted import rows, score_names
from tests.entry_point.serving.served_model import write_model

QUIET = ("batch_size=4", "pipeline=pillow", "pipeline.num_workers=0")


def predicted(model: Path, images: Path, output: Path, *more: str) -> list[dict[str, str]]:
    """The rows of the CSV file."""
    arguments = [f"model_dir={model}", f"input={images}", f"output_dir={output}", *QUIET, *more]
    assert commands.predict([*arguments, "csv=true"]) == ExitCode.FINISHED
    with (output / "part-1-of-1.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_csv_has_the_rows_of_the_parquet_file(model: Path, images: Path, tmp_path: Path) -> None:
    found = predicted(model, images, tmp_path / "out")
    parquet = tmp_path / "out" / "part-1-of-1.parquet"
    (tmp_path / "parquet").mkdir()
    shutil.copy(parquet, tmp_path / "parquet")
    names = score_names(tmp_path / "parquet")
    for one, other in zip(found, rows(tmp_path / "parquet"), strict=True):
        assert one["path"] == other["path"] and one["error"] == (other["error"] or "")
        if other["error"] is None:
            assert one["class"] == other["class"]
            assert float(one["probability"]) == pytest.approx(other["probability"])
            scores = [float(one[f"scores.{name}"]) for name in names]
            assert scores == pytest.approx(other["scores"])
        else:
            assert one["class"] == one[f"scores.{names[0]}"] == ""


def test_a_finished_part_gets_its_csv_file_later(model: Path, images: Path, tmp_path: Path) -> None:
    arguments = [f"model_dir={model}", f"input={images}", f"output_dir={tmp_path / 'out'}", *QUIET]
    assert commands.predict(arguments) == ExitCode.FINISHED
    assert not (tmp_path / "out" / "part-1-of-1.csv").exists()
    assert len(predicted(model, images, tmp_path / "out")) == 12


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\t", "\r"])
def test_no_cell_is_a_formula_to_a_spreadsheet(
    first: str, model: Path, images: Path, tmp_path: Path
) -> None:
    hostile = f"{first}cmd|' /C calc'!A0"
    (folder := tmp_path / "folder").mkdir()
    shutil.copy(images / "a" / "0.jpg", folder / f"{hostile.replace('/', '_')}.jpg")
    (row,) = predicted(model, folder, tmp_path / "out")
    assert row["path"].startswith(f"'{first}")


def test_labels_are_joined(images: Path, tmp_path: Path) -> None:
    many = write_model(tmp_path, "task=multilabel", "task.kwargs.threshold=0.01", kind="labels")
    found = predicted(many, images / "a", tmp_path / "out")
    assert found[0]["labels"] == "cat, big|dog|fish"


def test_features_have_a_column_each(model: Path, images: Path, tmp_path: Path) -> None:
    found = predicted(model, images / "a", tmp_path / "out", "output=features")
    assert [*found[0]][:3] == ["path", "features.0", "features.1"]
