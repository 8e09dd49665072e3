"""Weights of an earlier run: the head stays only for the same classes in the same order."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import ModelConfig
from entry_point.training.models import build_model
from tests.entry_point.training import forked

AS_TEXTS = sorted(map(str, range(12)))
BY_VALUE = [*map(str, range(12))]
FEWER = ["7", "pear", "10", "2", "plum"]
TINY = "tests.own_models.tiny_net"
PLAIN = ModelConfig(TINY)


class HeadsOfEachKind(nn.Module):
    """Class-sized weights in each form, and a layer of as many channels as there are classes."""

    prior: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 12, 3)
        self.norm = nn.BatchNorm2d(num_classes)
        self.pixels = nn.Conv2d(12, num_classes, 1)
        self.pair = nn.Linear(12, 2 * num_classes)
        self.transposed = nn.Parameter(torch.randn(5, num_classes))
        self.confusion = nn.Parameter(torch.randn(num_classes, num_classes))
        self.register_buffer("prior", torch.randn(num_classes))


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "entry_point")
    return caplog


def write_run(folder: Path, config: ModelConfig, names: Sequence[str]) -> dict[str, Tensor]:
    """Write a model folder; returns its weights."""
    torch.manual_seed(1)
    state: dict[str, Tensor] = build_model(config, len(names), image_size=64).state_dict()
    folder.mkdir(exist_ok=True)
    save_file(state, folder / "model.safetensors")
    (folder / "classes.json").write_text(json.dumps(list(names)))
    return state


def started(path: Path | None, config: ModelConfig, names: Sequence[str]) -> dict[str, Tensor]:
    """The weights that a model begins with; as initialized without a path."""
    torch.manual_seed(2)
    other = ModelConfig(config.name, config.kwargs, None if path is None else str(path))
    return build_model(other, len(names), image_size=64, names=names).state_dict()


MODELS: dict[str, tuple[dict[str, object], list[str]]] = {
    "squeezenet1_1": ({}, ["classifier.1."]),
    "lraspp_mobilenet_v3_large": (
        {},
        ["classifier.low_classifier.", "classifier.high_classifier."],
    ),
    "timm/deit_tiny_distilled_patch16_224": ({}, ["head.", "head_dist."]),
    "timm/resnet10t": ({"features_only": True}, ["classify."]),
    f"{__name__}.HeadsOfEachKind": (
        {},
        ["norm.", "pixels.", "pair.", "transposed", "confusion", "prior"],
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_weight_of_the_head_starts_from_scratch_for_another_order(
    name: str, tmp_path: Path
) -> None:
    kwargs, head = MODELS[name]
    config = ModelConfig(name, kwargs)
    before, initial = write_run(tmp_path, config, AS_TEXTS), started(None, config, BY_VALUE)
    for key, value in started(tmp_path, config, BY_VALUE).items():
        assert torch.equal(value, (initial if key.startswith(tuple(head)) else before)[key]), key


@pytest.mark.parametrize(
    ("new", "says"),
    [
        (AS_TEXTS, ""),
        (BY_VALUE, "the same classes in another order"),
        (FEWER, "other classes, 0, 1, 10, 11, 2, ..."),
    ],
)
def test_the_head_stays_for_the_same_classes_only_and_one_line_says_so(
    new: list[str], says: str, tmp_path: Path, lines: pytest.LogCaptureFixture
) -> None:
    before, initial = write_run(tmp_path, PLAIN, AS_TEXTS), started(None, PLAIN, new)
    lines.clear()
    for key, value in started(tmp_path, PLAIN, new).items():
        assert torch.equal(value, (initial if says and key.startswith("6.") else before)[key]), key
    says = says and f"; 6.weight, 6.bias start from scratch: the file has {says}"
    assert lines.messages == [f"weights from {tmp_path / 'model.safetensors'}{says}"]


def test_one_line_says_which_order_is_assumed_without_names(
    tmp_path: Path, lines: pytest.LogCaptureFixture
) -> None:
    before, file = write_run(tmp_path, PLAIN, AS_TEXTS), tmp_path / "model.safetensors"
    (tmp_path / "classes.json").unlink()
    assert torch.equal(started(tmp_path, PLAIN, BY_VALUE)["6.weight"], before["6.weight"])
    started(tmp_path, PLAIN, FEWER)
    assert lines.messages == [
        f"weights from {file}; they name no classes and are taken to be for 0, 1, 2, 3, 4, ..., "
        "in this order",
        f"weights from {file}; 6.weight, 6.bias start from scratch: the file has none of this size",
    ]


@pytest.mark.parametrize("content", ["[", "{}", '"cat"'])
def test_wrong_names_beside_weights_are_one_line(content: str, tmp_path: Path) -> None:
    write_run(tmp_path, PLAIN, AS_TEXTS)
    (tmp_path / "classes.json").write_text(content)
    with pytest.raises(ConfigError, match=r"model\.weights=.*classes\.json .*correct or remove it"):
        started(tmp_path, PLAIN, BY_VALUE)


class WithAuxiliary(nn.Module):
    """Has the names of torchvision's auxiliary heads."""

    def __init__(self, num_classes: int, aux: bool = True) -> None:
        super().__init__()
        self.classifier = nn.Linear(3, num_classes)
        if aux:
            self.aux_classifier = nn.Linear(3, num_classes)


def test_the_auxiliary_head_of_a_run_is_taken_over_if_the_model_has_one(tmp_path: Path) -> None:
    name, key = f"{__name__}.WithAuxiliary", "aux_classifier.weight"
    before = write_run(tmp_path, ModelConfig(name), AS_TEXTS)
    assert torch.equal(started(tmp_path, ModelConfig(name), AS_TEXTS)[key], before[key])
    assert key not in started(tmp_path, ModelConfig(name, {"aux": False}), AS_TEXTS)


def test_a_checkpoint_names_its_classes(tmp_path: Path, photo_folder: Path) -> None:
    assert forked.run(tmp_path, photo_folder, ["trainer.epochs=1"]) == 0
    (checkpoint,) = (tmp_path / "checkpoints").glob("step-*.pt")
    names = json.loads((tmp_path / "model" / "classes.json").read_text())
    state = torch.load(checkpoint, weights_only=True)
    before, config = state["learner"]["model"], PLAIN
    flat = {**state.pop("learner"), **state}
    torch.save(flat, of_version_1 := tmp_path / "flat.pt")
    for path in (checkpoint, of_version_1):
        assert torch.equal(started(path, config, names)["6.bias"], before["6.bias"])
        other = started(path, config, names[::-1])
        assert torch.equal(other["0.bias"], before["0.bias"])
        initial = started(None, config, names)
        assert torch.equal(other["6.bias"], initial["6.bias"])
