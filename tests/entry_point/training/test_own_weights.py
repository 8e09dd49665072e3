"""Weights of an earlier run whose classes are others, or the same in another order."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision.models.segmentation import fcn_resnet50

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import ModelConfig, load_train_config
from entry_point.job.devices import Devices
from entry_point.training.learner import Learner
from entry_point.training.models import build_model
from tests.entry_point.training import forked
from tests.entry_point.training.tasks.label_sources import labels, task_of

AS_TEXTS = sorted(map(str, range(12)))
BY_VALUE = [*map(str, range(12))]
FEWER = ["7", "pear", "10", "2", "plum"]


class HeadsOfEachKind(nn.Module):
    """Class-sized weights in each form, and a layer that has as many channels as FEWER classes."""

    prior: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 5, 3)
        self.norm = nn.BatchNorm2d(num_classes)
        self.pixels = nn.Conv2d(5, num_classes, 1)
        self.auxiliary = nn.Sequential(nn.Linear(5, 12), nn.Linear(12, num_classes))
        self.transposed = nn.Parameter(torch.randn(5, num_classes))
        self.confusion = nn.Parameter(torch.randn(num_classes, num_classes))
        self.register_buffer("prior", torch.randn(num_classes))

    def forward(self, images: Tensor) -> Tensor:
        maps = self.body(images)
        features = maps.mean((2, 3))
        pixels: Tensor = self.norm(self.pixels(maps)).mean((2, 3))
        return pixels + self.auxiliary(features) + features @ self.transposed + self.prior


class TwoForEachClass(nn.Module):
    """A mean and a deviation for each class, and one number for all."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 12), nn.Linear(12, 2 * num_classes)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "entry_point")
    return caplog


def write_run(folder: Path, config: ModelConfig, names: Sequence[str], size: int = 64) -> nn.Module:
    """Write a model folder; returns its model."""
    torch.manual_seed(1)
    model = build_model(config, len(names), image_size=size)
    folder.mkdir(exist_ok=True)
    save_file(model.state_dict(), folder / "model.safetensors")
    (folder / "classes.json").write_text(json.dumps(list(names)))
    return model


def started(
    folder: Path | str, config: ModelConfig, names: Sequence[str], size: int = 64
) -> nn.Module:
    """A model that begins with the weights in the folder."""
    torch.manual_seed(2)
    other = ModelConfig(config.name, config.kwargs, str(folder))
    return build_model(other, len(names), image_size=size, names=names)


MODELS: dict[str, dict[str, object]] = {
    "resnet18": {},
    "squeezenet1_1": {},
    "lraspp_mobilenet_v3_large": {},
    "timm/test_vit": {},
    "timm/test_byobnet": {},
    "timm/deit_tiny_distilled_patch16_224": {},
    "timm/resnet10t": {"features_only": True},
    f"{__name__}.HeadsOfEachKind": {},
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("new", [BY_VALUE, FEWER], ids=["in another order", "others"])
def test_each_class_is_answered_as_before_and_a_new_one_by_new_weights(
    name: str, new: list[str], tmp_path: Path
) -> None:
    config = ModelConfig(name, MODELS[name])
    images = torch.randn(2, 3, 64, 64)
    before = write_run(tmp_path, config, AS_TEXTS).eval()(images)
    after = started(tmp_path, config, new).eval()(images)
    assert after.shape[1] == len(new)
    known = [each for each in new if each in AS_TEXTS]
    torch.testing.assert_close(
        after[:, [new.index(each) for each in known]],
        before[:, [AS_TEXTS.index(each) for each in known]],
    )


def test_layers_that_have_as_many_channels_as_there_are_classes_stay_as_they_are(
    tmp_path: Path,
) -> None:
    """resnet18 has layers of 64 channels."""
    old = [f"class {number}" for number in range(64)]
    before = write_run(tmp_path, ModelConfig(), old).state_dict()
    after = started(tmp_path, ModelConfig(), old[::-1]).state_dict()
    for key, value in after.items():
        expected = before[key].flip(0) if key.startswith("fc.") else before[key]
        assert torch.equal(value, expected), key


def test_each_dimension_of_the_classes_goes_by_name(tmp_path: Path) -> None:
    config = ModelConfig(f"{__name__}.HeadsOfEachKind")
    before = write_run(tmp_path, config, AS_TEXTS).state_dict()["confusion"]
    torch.manual_seed(2)
    initial = build_model(config, len(FEWER)).state_dict()["confusion"]
    after = started(tmp_path, config, FEWER).state_dict()["confusion"]
    for i, row in enumerate(FEWER):
        for j, column in enumerate(FEWER):
            expected = initial[i, j]
            if row in AS_TEXTS and column in AS_TEXTS:
                expected = before[AS_TEXTS.index(row), AS_TEXTS.index(column)]
            assert after[i, j] == expected


def test_what_has_other_sizes_than_the_classes_begins_anew(
    tmp_path: Path, lines: pytest.LogCaptureFixture
) -> None:
    config = ModelConfig(f"{__name__}.TwoForEachClass")
    before = write_run(tmp_path, config, AS_TEXTS).state_dict()
    after = started(tmp_path, config, BY_VALUE).state_dict()
    assert torch.equal(after["body.weight"], before["body.weight"])
    assert not torch.isin(after["head.weight"], before["head.weight"]).any()
    assert lines.messages[-1].endswith("model.safetensors, except head.weight, head.bias")


@pytest.mark.parametrize(
    ("new", "says"),
    [
        (AS_TEXTS, ""),
        (BY_VALUE, "; fc.weight, fc.bias: rows by class name, 12 of 12"),
        (FEWER, "; fc.weight, fc.bias: rows by class name, 3 of 5; new: pear, plum"),
        (
            list("abcdefghijkl"),
            "; fc.weight, fc.bias: rows by class name, 0 of 12; new: a, b, c, d, e, ...",
        ),
    ],
)
def test_one_line_says_what_became_of_the_head(
    new: list[str], says: str, tmp_path: Path, lines: pytest.LogCaptureFixture
) -> None:
    write_run(tmp_path, ModelConfig(), AS_TEXTS)
    started(tmp_path, ModelConfig(), new)
    assert lines.messages == [f"weights from {tmp_path / 'model.safetensors'}{says}"]


@pytest.mark.parametrize("order", [AS_TEXTS, BY_VALUE])
def test_one_line_says_which_order_is_assumed_without_names(
    order: list[str], tmp_path: Path, lines: pytest.LogCaptureFixture
) -> None:
    before = write_run(tmp_path, ModelConfig(), AS_TEXTS)
    (tmp_path / "classes.json").unlink()
    after = started(tmp_path, ModelConfig(), order)
    assert torch.equal(after.get_parameter("fc.weight"), before.get_parameter("fc.weight"))
    assert lines.messages == [
        f"weights from {tmp_path / 'model.safetensors'}, which name no classes: they are taken to "
        f"be {', '.join(order[:5])}, ..., in this order"
    ]
    started(tmp_path, ModelConfig(), FEWER)
    assert lines.messages[1].endswith(".safetensors, except fc.weight, fc.bias")


@pytest.mark.parametrize("content", ["[", "{}", '"cat"'])
def test_wrong_names_beside_weights_are_one_line(content: str, tmp_path: Path) -> None:
    write_run(tmp_path, ModelConfig(), AS_TEXTS)
    (tmp_path / "classes.json").write_text(content)
    with pytest.raises(ConfigError, match=r"model\.weights=.*classes\.json .*correct or remove it"):
        started(tmp_path, ModelConfig(), BY_VALUE)


def test_averaged_weights_begin_with_the_same_rows(tmp_path: Path) -> None:
    name = "tests.own_models.tiny_net"
    before = write_run(tmp_path, ModelConfig(name), AS_TEXTS).state_dict()["6.weight"]
    config, _ = load_train_config(
        ["data=folder", f"model.name={name}", f"model.weights={tmp_path}", "optim.ema_decay=0.9"]
    )
    task = task_of(labels("class", BY_VALUE, torch.arange(12)))
    learner = Learner(config, Devices(torch.device("cpu"), None), task, 10, tmp_path)
    expected = before[[AS_TEXTS.index(each) for each in BY_VALUE]]
    for model in (learner.model, learner.exported):
        assert torch.equal(model.state_dict()["6.weight"], expected)


def with_auxiliary(num_classes: int, aux_loss: bool = True) -> nn.Module:
    """A model with the names of torchvision's auxiliary heads."""
    model: nn.Module = fcn_resnet50(
        weights=None, weights_backbone=None, num_classes=num_classes, aux_loss=aux_loss
    )
    return model


def test_the_auxiliary_head_of_a_run_is_taken_over_if_the_model_has_one(tmp_path: Path) -> None:
    name, key = f"{__name__}.with_auxiliary", "aux_classifier.4.weight"
    before = write_run(tmp_path, ModelConfig(name), AS_TEXTS).state_dict()
    after = started(tmp_path, ModelConfig(name), BY_VALUE).state_dict()
    assert torch.equal(after[key], before[key][[AS_TEXTS.index(each) for each in BY_VALUE]])
    without = ModelConfig(name, {"aux_loss": False})
    assert key not in started(tmp_path, without, BY_VALUE).state_dict()


def test_a_checkpoint_names_its_classes(tmp_path: Path, photo_folder: Path) -> None:
    assert forked.run(tmp_path, photo_folder, ["trainer.epochs=1"]) == 0
    (checkpoint,) = (tmp_path / "checkpoints").glob("step-*.pt")
    names = json.loads((tmp_path / "model" / "classes.json").read_text())
    new = [*names[::-1], "pear"]
    config = ModelConfig("tests.own_models.tiny_net", weights=str(checkpoint))
    after = build_model(config, len(new), names=new).state_dict()["6.bias"]
    before = torch.load(checkpoint, weights_only=True)["learner"]["model"]["6.bias"]
    assert torch.equal(after[:-1], before.flip(0))
