"""Augmentation of training batches on the device: your own, MixUp and CutMix."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torchvision.transforms import v2

from entry_point.config.augment_config import AugmentConfig
from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import DataConfig
from entry_point.config.resolve import call, resolve
from entry_point.config.train_config import TrainConfig
from entry_point.data.decode.own_augment import is_of_torchvision
from entry_point.job.devices import Devices
from entry_point.training.tasks.task import Task

Augmentation = Callable[[torch.Tensor], torch.Tensor]
"""float `(N, 3, S, S)` -> the same shape and type, both on the device.

It may draw from torch's, NumPy's and Python's generators. These are seeded before each step, so a
resumed run draws the same numbers.
"""
_MOVING_POLICIES = ("trivial", "rand_timm")
_AUTOMATIC = ("AutoAugment", "RandAugment", "TrivialAugmentWide", "AugMix")
_MOVING_TRANSFORMS = frozenset(
    (
        *("RandomHorizontalFlip", "RandomVerticalFlip", "Resize", "CenterCrop", "FiveCrop"),
        *("RandomResizedCrop", "TenCrop", "Pad", "RandomZoomOut", "RandomRotation", "RandomAffine"),
        *("RandomCrop", "RandomPerspective", "ElasticTransform", "RandomIoUCrop", "ScaleJitter"),
        *("RandomShortestSize", "RandomResize"),
        *_AUTOMATIC,
    )
)
"""Classes of `torchvision.transforms` and of its `v2` that rotate, shear, shift, flip or resize."""
_PIXEL_TRANSFORMS = frozenset(
    (
        *("ColorJitter", "RandomPhotometricDistort", "RandomAdjustSharpness", "RandomAutocontrast"),
        *("RandomEqualize", "RandomInvert", "RandomPosterize", "RandomSolarize", "GaussianNoise"),
        *("JPEG", *_AUTOMATIC),
    )
)
"""Classes that expect pixels from 0 to 1; most clip values outside that range."""


class BatchAugmentation:
    """Augments a batch before the model gets it.

    Raises ConfigError for an augmentation that cannot be built, or that does not suit the task.
    """

    def __init__(self, config: TrainConfig, task: Task) -> None:
        if task.takes == "targets":
            refuse_moving(config.augment)
        self.own = build_augmentation(config.augment, config.data)
        optim, count = config.optim, len(task.names)
        wanted = {"mixup": (v2.MixUp, optim.mixup_alpha), "cutmix": (v2.CutMix, optim.cutmix_alpha)}
        mixes: list[v2.Transform] = []
        for name, (mix, alpha) in wanted.items():
            if alpha and name not in task.blends:
                message = f"task.name={config.task.name} cannot learn from what it blends; set 0"
                raise ConfigError(f"optim.{name}_alpha", alpha, message)
            if alpha:
                mixes.append(mix(alpha=alpha, num_classes=count))
        self._mix = v2.RandomChoice(mixes) if mixes else None

    def __call__(
        self, images: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns images and labels for the task's loss; mixed labels are float32 (N, classes)."""
        images = self.own(images)
        if self._mix is not None:
            images, labels = self._mix(images, labels)
        return images, labels


def build_augmentation(config: AugmentConfig, data: DataConfig) -> Augmentation:
    """Returns your own augmentation of batches, or the identity if there is none. Raises
    ConfigError."""
    if config.name is None or not config.own or config.per != "batch":
        return lambda images: images
    made = _build_own(config.name, config)
    if not callable(made):
        message = f"must return a function from images to images, not {type(made).__name__}"
        raise ConfigError("augment.name", config.name, message)
    if is_of_torchvision(made):
        is_normalized = data.normalization != ([0, 0, 0], [1, 1, 1])
        _refuse_pixel_transforms(config.name, made, is_normalized)
    name, augment = config.name, made

    def checked(images: torch.Tensor) -> torch.Tensor:
        augmented = augment(images)
        if not isinstance(augmented, torch.Tensor) or augmented.shape != images.shape:
            found = getattr(augmented, "shape", type(augmented).__name__)
            message = f"must return images of the shape {tuple(images.shape)}, not {found}"
            raise ConfigError("augment.name", name, message)
        if not augmented.is_floating_point():  # 0 to 255, unlike the images of validation
            message = f"must return normalized images of floats, not {augmented.dtype}"
            raise ConfigError("augment.name", name, message)
        return augmented.to(images.dtype)  # NumPy returns float64, which models do not take

    return checked


def _refuse_pixel_transforms(name: str, made: object, is_normalized: bool) -> None:
    """Raise ConfigError for a transform that needs pixels from 0 to 1 but gets normalized ones,
    unless a Normalize or Lambda before it may undo that; and for a Normalize of training alone."""
    names = [type(part).__name__ for part in _parts(made) if is_of_torchvision(part)]
    of_pixels = [place for place, each in enumerate(names) if each in _PIXEL_TRANSFORMS]
    undone = [place for place, each in enumerate(names) if each in ("Normalize", "Lambda")]
    if is_normalized and of_pixels and of_pixels[0] < min(undone, default=len(names)):
        found = names[of_pixels[0]]
        message = f"{found} takes pixels from 0 to 1, and batches are normalized; set sample"
        raise ConfigError("augment.per", "batch", message)
    undoes = is_normalized and of_pixels
    if names.count("Normalize") == 1 and "Lambda" not in names and not undoes:
        message = (
            "Normalize changes training images alone, and validation gets others; remove it: all "
            "images get data.mean and data.std"
        )
        raise ConfigError("augment.name", name, message)


def refuse_moving(config: AugmentConfig) -> None:
    """Raise ConfigError for an augmentation that moves pixels: it gets only the images, so masks
    and boxes would no longer match them.

    Finds built-in policies and torchvision's transforms, also nested in what your function returns;
    does not check the rest of your code.
    """
    if config.name is None:
        return
    moving = [config.name] if config.name in _MOVING_POLICIES else []
    if config.own:
        made = _build_own(config.name, config)
        moving = [type(part).__name__ for part in _parts(made) if _moves(part)]
    if moving:
        inside = "" if config.name.endswith(moving[0]) else f" ({moving[0]})"
        message = (
            f"moves pixels{inside}, and targets would not follow; use one that changes colors only,"
            " such as color_jitter or simclr; data.scale, data.ratio and data.hflip move both"
        )
        raise ConfigError("augment.name", config.name, message)


def _build_own(name: str, config: AugmentConfig) -> object:
    build: Callable[..., object] = resolve("augment.name", name, {})
    return call("augment.kwargs", build, config.kwargs)


def _parts(made: object) -> list[object]:
    """Returns a transform and those nested in it, as in `Compose` and `RandomApply`, in the order
    in which they are applied."""
    found = [made]
    for place, part in enumerate(found, 1):  # the loop inserts into `found`
        if isinstance(part, (list, tuple)):
            held = [*part]
        else:
            held = [*(part if isinstance(part, dict) else getattr(part, "__dict__", {})).values()]
        for each in reversed(held):
            may_hold = isinstance(each, (list, tuple, dict, nn.Module)) or is_of_torchvision(each)
            if may_hold and not any(each is known for known in found):
                found.insert(place, each)
    return found


def _moves(part: object) -> bool:
    """Returns whether `part` is, or derives from, a transform of torchvision that moves pixels."""
    kinds = type(part).__mro__
    return any(kind.__name__ in _MOVING_TRANSFORMS for kind in kinds) and is_of_torchvision(part)


def seed_step(devices: Devices, run_seed: int, step: int) -> None:
    """Seed torch's, NumPy's and Python's generators, any of which your own model may use in a step.

    The seeds are hashes, because torch's CPU generator reads only 32 bits. `torch.manual_seed`
    would take a millisecond: it stores the call, with its traceback, for each type of device that
    is not initialized yet.
    """
    words = np.random.SeedSequence((run_seed, step, devices.rank)).generate_state(4)
    random.seed(words.tobytes())
    np.random.seed(words)
    torch.default_generator.manual_seed(int(words[0]))
    if devices.device.type == "cuda":
        torch.cuda.manual_seed(int(words.view(np.uint64)[1]))
