"""How pixels are normalized: `data.mean` and `data.std` that nobody sets are those that the weights
were trained with."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torchvision.transforms.v2 import functional

from entry_point.config.train_config import load_train_config
from entry_point.job.run_folder import RunFolder
from entry_point.training.checkpoints import save_tensors
from entry_point.training.expected_pixels import with_expected_pixels
from entry_point.training.models import Normalize
from tests.entry_point.serving.served_model import write_model

HALF, OTHER = [0.5, 0.5, 0.5], [0.25, 0.5, 0.75]
IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
VIT = "model.name=timm/test_vit"
DEVICES: Any = SimpleNamespace(is_first=True, from_first=lambda value: value)


def pixels(root: Path, *overrides: str) -> tuple[list[float], list[float]]:
    config, _ = load_train_config(["data=folder", *overrides])
    found = with_expected_pixels(config, RunFolder(root), DEVICES).data
    assert found.mean is not None and found.std is not None  # config.yaml has numbers
    return found.mean, found.std


def state_file(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({"a": torch.ones(1)}, file)
    return file


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """The file that `make weights ARGS=timm/test_vit` fetches, in the channel of a container."""
    tag = timm.get_pretrained_cfg("test_vit").tag
    return state_file(tmp_path / f"input/data/pretrained/timm/test_vit.{tag}.safetensors")


def test_published_weights_say_what_they_expect(
    tmp_path: Path, published: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    weights = "model.weights=pretrained"
    assert pixels(tmp_path, VIT, weights) == (HALF, HALF)
    assert "data.mean=[0.5,0.5,0.5] data.std=[0.5,0.5,0.5], which the published" in caplog.text
    assert pixels(tmp_path, VIT, weights, "data.mean=[0,0,0]") == ([0, 0, 0], HALF)
    typed = [
        f"data.{key}={[*values]}" for key, values in zip(("mean", "std"), IMAGENET, strict=True)
    ]
    assert pixels(tmp_path, VIT, weights, *typed) == IMAGENET
    (copy := tmp_path / "elsewhere" / published.name).parent.mkdir()
    copy.write_bytes(published.read_bytes())
    assert pixels(tmp_path, VIT, f"model.weights={copy}") == (HALF, HALF)


def test_without_weights_they_are_imagenets(tmp_path: Path) -> None:
    assert pixels(tmp_path, VIT) == IMAGENET
    assert pixels(tmp_path) == IMAGENET


def test_a_run_that_resumes_keeps_those_of_its_checkpoint(tmp_path: Path, published: Path) -> None:
    assert published.exists()
    (tmp_path / "checkpoints").mkdir()
    identity = {"data.mean": OTHER, "data.std": HALF}
    save_tensors({"identity": identity}, tmp_path / "checkpoints/step-000000007.pt")
    assert pixels(tmp_path, VIT, "model.weights=pretrained") == (OTHER, HALF)


def test_weights_of_an_earlier_run_say_what_they_expect(tmp_path: Path) -> None:
    typed = [f"data.mean={OTHER}", f"data.std={HALF}"]
    model = write_model(tmp_path / "run", *typed) / "model.safetensors"
    assert pixels(tmp_path, f"model.weights={model}") == (OTHER, HALF)
    checkpoint = tmp_path / "best.pt"
    save_tensors({"identity": {"data.mean": OTHER, "data.std": HALF}}, checkpoint)
    assert pixels(tmp_path, f"model.weights={checkpoint}") == (OTHER, HALF)


def test_a_hubs_file_says_it_beside_the_weights(tmp_path: Path) -> None:
    file = state_file(tmp_path / "hub/model.safetensors")
    beside = {"pretrained_cfg": {"mean": OTHER, "std": HALF}}
    (file.parent / "config.json").write_text(json.dumps(beside))
    assert pixels(tmp_path, VIT, f"model.weights={file}") == (OTHER, HALF)


@pytest.mark.parametrize("content", ["[1]", "{", '{"pretrained_cfg": {"mean": [1], "std": 0}}'])
def test_a_line_says_that_nothing_tells(
    content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = state_file(tmp_path / "mine/model.safetensors")
    for name in ("config.json", "config.yaml"):
        (file.parent / name).write_text(content)
    assert pixels(tmp_path, VIT, f"model.weights={file}") == IMAGENET
    assert "timm/test_vit expect data.mean=[0.5,0.5,0.5] data.std=[0.5,0.5,0.5]" in caplog.text


DRAWN = torch.Generator().manual_seed(0)
PIXELS = torch.randint(0, 256, (2, 3, 5, 7), dtype=torch.uint8, generator=DRAWN)


def test_normalization_matches_torchvision() -> None:
    expected = functional.normalize(functional.to_dtype(PIXELS, scale=True), *IMAGENET)
    torch.testing.assert_close(Normalize(*IMAGENET)(PIXELS), expected)


def test_a_bf16_model_gets_what_autocast_would_round_its_fp32_input_to() -> None:
    full = Normalize(*IMAGENET, torch.float32)(PIXELS)
    assert torch.equal(Normalize(*IMAGENET, torch.bfloat16)(PIXELS), full.bfloat16())
