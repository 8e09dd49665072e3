"""`output=features`: what the last linear layer gets."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from entry_point.job.program import ExitCode
from tests import commands
from tests.entry_point.prediction.predicted import rows, table
from tests.entry_point.serving.served_model import CLASSES, write_model


def arguments(model: Path, images: Path, output: Path, *more: str) -> list[str]:
    settings = ("batch_size=5", "pipeline=pillow", "pipeline.num_workers=0")
    return [f"model_dir={model}", f"input={images}", f"output_dir={output}", *settings, *more]


def test_the_last_layer_makes_the_scores_of_the_features(
    model: Path, images: Path, tmp_path: Path
) -> None:
    for output in ("scores", "features"):
        command = arguments(model, images, tmp_path / output, f"output={output}")
        assert commands.predict(command) == 0
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
    model = write_model(
        tmp_path / "run",
        f"model.name=project.net.{network}",
        network=own[network](len(CLASSES)),
        code=WITHOUT,
    )
    command = arguments(model, images, tmp_path / "output", "output=features")
    capsys.readouterr()
    assert commands.predict(command) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert "does not end in a linear layer" in error and error.count("\n") == 1
    assert not list((tmp_path / "output").glob("*.parquet"))
