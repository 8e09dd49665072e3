"""Augmentations that move pixels are refused where targets lie in the image: they do not follow."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision.transforms
from torch import Tensor, nn
from torchvision.transforms import v2
from torchvision.transforms.v2 import _auto_augment, _color, _geometry

from entry_point.config.augment_config import AugmentConfig
from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import load_train_config
from entry_point.job.program import ExitCode
from entry_point.training.augmentation import (
    _MOVING_TRANSFORMS,
    _PIXEL_TRANSFORMS,
    BatchAugmentation,
    refuse_moving,
)
from tests.entry_point.training import forked
from tests.entry_point.training.tasks.label_sources import classes, labels, task_of

V1, V2, HERE = "torchvision.transforms.", "torchvision.transforms.v2.", f"{__name__}."
MOVING: dict[str, dict[str, Any]] = {
    V1 + "RandomHorizontalFlip": {},
    V1 + "RandomRotation": {"degrees": 20},
    V2 + "RandomResizedCrop": {"size": 8},
    V2 + "TrivialAugmentWide": {},
}
COLORS: dict[str, dict[str, Any]] = {
    "ColorJitter": {"brightness": 0.2},
    "GaussianBlur": {"kernel_size": 3},
    **{name: {} for name in ("RandomGrayscale", "RandomErasing", "RandomEqualize")},
}


class Derived(v2.RandomAffine):
    def __init__(self) -> None:
        super().__init__(20)


class Holding:
    """Is no transform itself."""

    def __init__(self) -> None:
        self.by_name = {"both": [torchvision.transforms.RandomApply([v2.RandomVerticalFlip()])]}

    def __call__(self, images: Tensor) -> Tensor:
        changed: Tensor = self.by_name["both"][0](images)
        return changed


def chosen() -> v2.Transform:
    return v2.RandomOrder([v2.RandomChoice([v2.GaussianBlur(3), v2.RandomPerspective()])])


def in_a_row() -> nn.Module:
    return nn.Sequential(v2.ColorJitter(0.1), v2.ElasticTransform())


def colors() -> v2.Transform:
    return v2.Compose([v2.ColorJitter(0.1), v2.RandomApply([v2.GaussianBlur(3)])])


def unknown() -> object:
    return lambda images: images.flip(-1)


def test_every_transform_of_torchvision_that_moves_pixels_or_changes_colors_is_known() -> None:
    linear = {"Grayscale", "RandomGrayscale", "RGB", "RandomChannelPermutation"}
    known = {
        _geometry: _MOVING_TRANSFORMS,
        _auto_augment: _MOVING_TRANSFORMS & _PIXEL_TRANSFORMS,
        _color: _PIXEL_TRANSFORMS | linear,
    }
    for module, found in known.items():
        own = [each for _, each in inspect.getmembers(module, inspect.isclass)]
        names = {each.__name__ for each in own if each.__module__ == module.__name__}
        assert {name for name in names if not name.startswith("_")} <= found


@pytest.mark.parametrize("path", MOVING)
@pytest.mark.parametrize("per", ["batch", "sample"])
def test_a_transform_that_moves_pixels_is_refused(path: str, per: Any) -> None:
    with pytest.raises(ConfigError, match=f"{path}: moves pixels, and targets would not"):
        refuse_moving(AugmentConfig(path, MOVING[path], per=per))


@pytest.mark.parametrize(
    ("name", "inside"),
    [
        ("Derived", None),
        *(("Holding", "RandomVerticalFlip"), ("chosen", "RandomPerspective")),
        ("in_a_row", "ElasticTransform"),
    ],
)
def test_one_within_your_own_is_found_and_named(name: str, inside: str | None) -> None:
    named = f" \\({inside}\\)" if inside else ""
    with pytest.raises(ConfigError, match=f"{name}: moves pixels{named}, and targets"):
        refuse_moving(AugmentConfig(HERE + name))


def test_colors_and_what_is_unknown_are_allowed() -> None:
    for name, kwargs in COLORS.items():
        refuse_moving(AugmentConfig(V2 + name, kwargs))
    for allowed in (HERE + "colors", HERE + "unknown", "color_jitter", "simclr", "erase", None):
        refuse_moving(AugmentConfig(allowed))


@pytest.mark.parametrize("name", ["rand_timm", f"{V2}RandomVerticalFlip"])
def test_only_targets_in_the_image_are_at_stake(name: str) -> None:
    given = ["task=segmentation", "data.crop=squash", f"augment.name={name}"]
    masks = labels("targets", ["a", "b"], torch.zeros(4, 8, 8, dtype=torch.uint8))
    with pytest.raises(ConfigError, match="moves pixels"):
        BatchAugmentation(load_train_config(given)[0], task_of(masks, *given))
    BatchAugmentation(load_train_config(given[2:])[0], task_of(classes(4), *given[2:]))


@pytest.mark.parametrize("advised", [None, "data.hflip=1"])
def test_a_job_ends_with_the_line_and_what_it_advises_trains(
    advised: str | None, photo_folder: Path, tmp_path: Path
) -> None:
    overrides = [
        *("data.format=tests.own_sources.Brightness", "task.name=tests.own_tasks.Pixels"),
        *("model.name=tests.own_models.pixel_net", "trainer.epochs=1"),
        advised or f"augment.name={V2}RandomVerticalFlip",
    ]
    code = forked.run(tmp_path, photo_folder, overrides)
    log = (tmp_path / "log").read_text()
    assert code == (ExitCode.FINISHED if advised else ExitCode.USAGE), log
    assert "Traceback" not in log
    assert ("RandomVerticalFlip: moves pixels" in log.splitlines()[-1]) is (advised is None)
