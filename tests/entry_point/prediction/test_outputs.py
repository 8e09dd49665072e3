"""What a prediction leaves besides scores: `output=features`, and `csv=true` for a spreadsheet."""

import csv
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from entry_point.job.program import ExitCode
from entry_point.job.whole_file import replacing
from entry_point.prediction_table import png_file
from tests.entry_point.prediction.predicted import rows, run, score_names, table
from tests.entry_point.serving.served_model import CLASSES, write_model

DIVIDING = """
from torch import nn

class Dividing(nn.Conv2d):
    def __init__(self, num_classes, of_pixels):
        super().__init__(3, num_classes, 1)
        self.of_pixels = of_pixels

    def forward(self, images):
        gray = images.mean(dim=1, keepdim=True)
        spread = gray.amax(dim=(2, 3), keepdim=True) - gray.amin(dim=(2, 3), keepdim=True)
        outputs = super().forward((images - images.mean()) / spread)
        return outputs if self.of_pixels else outputs.mean((2, 3))
"""


def test_the_last_layer_makes_the_scores_of_the_features(
    model: Path, images: Path, tmp_path: Path
) -> None:
    for output in ("scores", "features"):
        assert run(model, images, tmp_path / output, f"output={output}") == 0
    assert table(tmp_path / "features").column_names == ["path", "features", "error"]
    scored, featured = rows(tmp_path / "scores"), rows(tmp_path / "features")
    assert [row["path"] for row in featured] == [row["path"] for row in scored]
    (bad,) = [row for row in featured if row["error"]]
    assert bad["path"] == "c/1.jpg" and bad["features"] is None
    features = np.array([row["features"] for row in featured if row != bad], np.float32)
    weights = load_file(model / "model.safetensors")
    logits = torch.from_numpy(features) @ weights["11.weight"].T + weights["11.bias"]
    expected = [row["scores"] for row in scored if row["scores"]]
    assert features.shape == (11, 32)
    assert logits.softmax(1).numpy() == pytest.approx(np.array(expected), abs=1e-5)


def test_an_image_of_any_name_can_have_a_png_of_its_own(tmp_path: Path) -> None:
    names = [f"a/{letter}{length * '猫'}.jpg" for letter in "xy" for length in (1, 72, 83)]
    files = [tmp_path / png_file("mask", name) for name in names]
    for file in files:
        with replacing(file) as unfinished:
            unfinished.touch()
    assert len({*files}) == len(names) and files[0].name == "x猫.jpg.png"


WITHOUT = """
from torch import nn

def all_convolutions(num_classes):
    return nn.Sequential(nn.Conv2d(3, num_classes, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())

def linear_per_pixel(num_classes):
    return nn.Sequential(nn.Flatten(2), nn.Linear(32 * 32, num_classes), nn.Flatten())
"""


@pytest.mark.parametrize("network", ["all_convolutions", "linear_per_pixel"])
def test_a_classifier_without_features_is_refused_in_one_line(
    network: str, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own: dict[str, Any] = {}
    exec(WITHOUT, own)
    name, built = f"model.name=project.net.{network}", own[network](len(CLASSES))
    model = write_model(tmp_path / "run", name, network=built, code=WITHOUT)
    capsys.readouterr()
    assert run(model, images, tmp_path / "output", "output=features") == ExitCode.USAGE
    error = capsys.readouterr().err
    assert "does not end in a linear layer" in error and error.count("\n") == 1
    assert not list((tmp_path / "output").glob("*.parquet"))


def cells(folder: Path) -> list[dict[str, str]]:
    """The rows of the CSV file."""
    with (folder / "part-1-of-1.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_csv_has_the_rows_of_the_parquet_file_also_if_it_is_asked_for_later(
    model: Path, images: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    assert run(model, images, output) == 0
    names, expected = score_names(output), rows(output)
    assert run(model, images, output, "csv=true") == 0
    found = cells(output)
    assert len(found) == 12
    for one, other in zip(found, expected, strict=True):
        assert one["path"] == other["path"] and one["error"] == (other["error"] or "")
        if other["error"] is None:
            assert one["class"] == other["class"]
            assert float(one["probability"]) == pytest.approx(other["probability"])
            scores = [float(one[f"scores.{name}"]) for name in names]
            assert scores == pytest.approx(other["scores"])
        else:
            assert one["class"] == one[f"scores.{names[0]}"] == ""


def test_no_cell_is_a_formula_to_a_spreadsheet(model: Path, images: Path, tmp_path: Path) -> None:
    folder, starts = tmp_path / "folder", ["=", "+", "-", "@", "\t", "\r", "\n"]
    folder.mkdir()
    for start in starts:
        shutil.copy(images / "a/0.jpg", folder / f"{start}cmd|' C calc'!A0.jpg")
    assert run(model, folder, tmp_path / "out", "csv=true") == 0
    assert sorted(row["path"][:2] for row in cells(tmp_path / "out")) == sorted(
        f"'{start}" for start in starts
    )


@pytest.mark.parametrize(
    ("task", "kind"), [("classification", "class"), ("segmentation", "targets")]
)
def test_an_answer_that_is_no_number_is_an_error_of_its_image(
    task: str, kind: str, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that divides by an image's contrast cannot say what one of a single color is."""
    settings = ["model.name=project.net.Dividing", f"model.kwargs.of_pixels={kind == 'targets'}"]
    settings += [f"task={task}"]
    network = nn.Conv2d(3, 3, 1)
    broken = write_model(tmp_path, *settings, kind=kind, network=network, code=DIVIDING)
    Image.new("RGB", (50, 40), "red").save(images / "b/4.png")
    assert run(broken, images, tmp_path / "out") == 0
    made = pl.read_parquet(tmp_path / "out/part-1-of-1.parquet")
    found = {row.pop("path"): row for row in made.to_dicts()}
    error = found["b/4.png"].pop("error")
    assert error == "the model answers NaN or infinite numbers"
    assert {*found["b/4.png"].values()} == {None}
    good = [row for name, row in found.items() if name not in ("b/4.png", "c/1.jpg")]
    assert len(good) == 11 and all(row["error"] is None and row["scores"] for row in good)
    said = capsys.readouterr().err
    assert f"{images}/b/4.png: {error}" in said and "11 images predicted, 2 damaged" in said


def test_csv_joins_labels_and_has_a_column_for_each_feature(
    model: Path, images: Path, tmp_path: Path
) -> None:
    many = write_model(tmp_path, "task=multilabel", "task.kwargs.threshold=0.01", kind="labels")
    assert run(many, images / "a", tmp_path / "labels", "csv=true") == 0
    assert cells(tmp_path / "labels")[0]["labels"] == "cat, big|dog|fish"
    assert run(model, images / "a", tmp_path / "out", "csv=true", "output=features") == 0
    assert [*cells(tmp_path / "out")[0]][:3] == ["path", "features.0", "features.1"]
