"""What is drawn, against the functions of torchvision and timm: operations and their magnitudes.

Both sides note what they would apply to each of many samples. Seeds are fixed, so no test fails by
chance.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from timm.data import Mixup
from timm.data.auto_augment import rand_augment_transform
from torchvision.transforms import v2

from entry_point.config.train_config import load_train_config
from entry_point.data.plan import samples
from entry_point.data.plan.policies import build_augmenter
from entry_point.job.devices import Devices
from entry_point.training.augmentation import BatchAugmentation, seed_step
from tests.entry_point.data.plan.test_policies import NAMES, SIDE, tables
from tests.entry_point.training.tasks.label_sources import classes, task_of

LEAST_P = 1e-4
"""A comparison fails below this p-value."""


def one_plus(magnitude: float) -> float:
    return 1 + magnitude


def pixels(share: float) -> int:
    return round(share * SIDE)


def level(magnitude: float) -> int:
    return math.ceil(np.float32(255 * magnitude))


OF_TORCHVISION: dict[str, tuple[str, Any]] = {
    "Identity": ("identity", None),
    "ShearX": ("shear_x", float),
    "ShearY": ("shear_y", float),
    "TranslateX": ("translate_x", int),
    "TranslateY": ("translate_y", int),
    "Rotate": ("rotate", float),
    "Brightness": ("brightness", one_plus),
    "Color": ("saturation", one_plus),
    "Contrast": ("contrast", one_plus),
    "Sharpness": ("sharpness", one_plus),
    "Posterize": ("posterize", int),
    "Solarize": ("solarize", level),
    "AutoContrast": ("autocontrast", None),
    "Equalize": ("equalize", None),
    "Invert": ("invert", None),
}
"""torchvision's operation -> ours, and how its magnitude becomes our parameter."""
OF_TIMM = {
    name: (ours, float if parameter in (one_plus, level) else parameter)
    for name, (ours, parameter) in OF_TORCHVISION.items()
} | {
    "TranslateXRel": ("translate_x", pixels),
    "TranslateYRel": ("translate_y", pixels),
    "SolarizeAdd": ("solarize_add", float),
}
"""The same for timm's operations, whose names may end in `Increasing` or `Original`."""

Operation = tuple[str, float]
"""A name and its first parameter, 0 without one."""
Samples = list[tuple[Operation, ...]]
"""What is drawn for each sample, without identities unless a policy draws them."""


def noted(known: dict[str, tuple[str, Any]], name: str, magnitude: float) -> Operation:
    word, parameter = known[name]
    return word, round(float(np.float32(parameter(magnitude))), 4) if parameter else 0.0


def read(table: np.ndarray, *, keep_identity: bool = False) -> Samples:
    return [
        tuple((NAMES[int(r[0])], round(float(r[1]), 4)) for r in sample if r[0] or keep_identity)
        for sample in table
    ]


def ours(count: int, name: str, **kwargs: Any) -> Samples:
    return read(tables(count, name, kwargs=kwargs), keep_identity=name == "trivial")


def of_recipe(count: int, recipe: str) -> Samples:
    config, _ = load_train_config([f"experiment={recipe}", "data.root=x"])
    augmenter = build_augmenter(config.augment, config.data.normalization[0])
    assert augmenter is not None
    table = augmenter.table(3, samples.Samples.of(0, np.arange(count)), SIDE)
    table[table[..., 0] == NAMES.index("erase")] = 0
    return read(table)


def torchvisions(count: int, transform: Any) -> Samples:
    drawn: list[Operation] = []

    def note(image: object, name: str, magnitude: float, **_: object) -> object:
        drawn.append(noted(OF_TORCHVISION, name, magnitude))
        return image

    transform._apply_image_or_video_transform = note
    torch.manual_seed(0)
    image, samples = torch.zeros(3, SIDE, SIDE, dtype=torch.uint8), []
    for _ in range(count):
        drawn.clear()
        transform(image)
        samples.append(tuple(drawn))
    return samples


def timms(count: int, transform: Any) -> Samples:
    drawn: list[Operation] = []

    def note(name: str, image: object, magnitude: float = 0.0, **_: object) -> object:
        drawn.append(noted(OF_TIMM, name, magnitude))
        return image

    groups = getattr(transform, "policy", [getattr(transform, "ops", [])])
    for operation in (each for group in groups for each in group):
        word = operation.name.removesuffix("Increasing").removesuffix("Original")
        operation.aug_fn = partial(note, word)
    random.seed(0)
    np.random.seed(0)
    samples = []
    for _ in range(count):
        drawn.clear()
        transform(None)
        samples.append(tuple(drawn))
    return samples


def assert_equally_often(left: Samples, right: Samples) -> None:
    """Chi-square test of homogeneity over whole samples; both must draw the same ones."""
    first, second = Counter(left), Counter(right)
    assert not set(first) ^ set(second)
    counts = [[seen[kind] for kind in first] for seen in (first, second)]
    assert stats.chi2_contingency(counts).pvalue > LEAST_P


def names_of(samples: Samples) -> Samples:
    return [tuple((name, 0.0) for name, _ in sample) for sample in samples]


def assert_same_draws(left: Samples, right: Samples, *, noise: bool = False) -> None:
    """Equal in distribution. With `noise` in the magnitudes, these are compared by operation."""
    if not noise:
        return assert_equally_often(left, right)
    assert_equally_often(names_of(left), names_of(right))
    first, second = (magnitudes(samples) for samples in (left, right))
    for name in first:
        test = stats.ks_2samp(first[name], second[name], method="asymp")
        assert test.pvalue > LEAST_P, (name, test)
    return None


def magnitudes(samples: Samples) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for name, magnitude in (operation for sample in samples for operation in sample):
        found.setdefault(name, []).append(magnitude)
    return found


def timm_rand(config: str) -> Samples:
    return timms(20_000, rand_augment_transform(config, {}))


@pytest.mark.parametrize(
    ("recipe", "config"),
    # big_vision's randaug(2,10) applies each operation, and by timm's functions without `inc1`.
    [("deit_small", "rand-m9-mstd0.5-inc1"), ("vit_small", "rand-m10-n2-p1")],
)
def test_a_recipe_augments_as_strongly_as_its_source(recipe: str, config: str) -> None:
    assert_same_draws(of_recipe(20_000, recipe), timm_rand(config), noise="mstd" in config)


@pytest.mark.parametrize(
    ("config", "kwargs"),
    [
        ("rand-m4-n1-mstd2-p0.8", {"m": 4, "n": 1, "mstd": 2.0, "p": 0.8}),
        ("rand", {}),
    ],
)
def test_rand_timm_draws_as_timm_with_the_same_arguments(
    config: str, kwargs: dict[str, Any]
) -> None:
    drawn = ours(20_000, "rand_timm", **kwargs)
    assert_same_draws(drawn, timm_rand(config), noise="mstd" in config)


def test_trivial_draws_as_torchvision() -> None:
    theirs = torchvisions(15_000, v2.TrivialAugmentWide())
    assert_same_draws(ours(60_000, "trivial"), theirs)


COUNT, IMAGES = 2_500, 4
SMALL = 64
"""Large enough that it does not count that timm's boxes have odd sides, too."""
CPU = Devices(torch.device("cpu"), None)
Mix = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def our_mix() -> Iterator[Mix]:
    """The batch augmentation of a run, seeded before each step as its learner does."""
    overrides = ["optim.mixup_alpha=0.2", "optim.cutmix_alpha=1"]
    config, _ = load_train_config(overrides)
    mix = BatchAugmentation(config, task_of(classes(IMAGES), *overrides))
    for step in range(COUNT):
        seed_step(CPU, 0, step)
        yield mix


def timms_mix() -> Iterator[Mix]:
    mix = Mixup(0.2, 1.0, num_classes=IMAGES, label_smoothing=0.0)
    np.random.seed(1)
    for _ in range(COUNT):
        yield mix


def mixed(mixes: Iterator[Mix]) -> np.ndarray:
    """Of an image that was blended with another, in each batch: its share, and the box that CutMix
    cut out of it: top, left, height and width, or zeros without one.

    Image i has the value i + 1 in every pixel.
    """
    values = torch.arange(1.0, IMAGES + 1)
    images = values[:, None, None, None].expand(-1, 1, SMALL, SMALL)
    outputs = [mix(images.clone(), torch.arange(IMAGES)) for mix in mixes]
    weights = np.stack([targets.numpy() for _, targets in outputs])
    partners = weights * (1 - np.eye(IMAGES))
    batches = np.arange(COUNT)
    own = partners.any(2).argmax(1)
    other = partners[batches, own].argmax(1)
    share = weights[batches, own, own]
    assert np.allclose(share + partners[batches, own, other], 1)

    pixels = np.stack([blended[i, 0].numpy() for i, (blended, _) in zip(own, outputs, strict=True)])
    cut = pixels == (other + 1)[:, None, None]
    has_box = cut.any((1, 2)) & ~cut.all((1, 2))
    rows, columns = cut.any(2), cut.any(1)
    boxes = np.stack([rows.argmax(1), columns.argmax(1), rows.sum(1), columns.sum(1)]).T
    areas = boxes[:, 2] * boxes[:, 3]
    assert (cut.sum((1, 2)) == areas)[has_box].all()
    assert np.allclose(share[has_box], 1 - areas[has_box] / SMALL**2)
    blends = share * (own + 1) + (1 - share) * (other + 1)
    assert np.allclose(pixels[~has_box], blends[~has_box, None, None], atol=1e-4)
    return np.column_stack([share, boxes * has_box[:, None]])


def test_mixup_and_cutmix_blend_as_timm() -> None:
    """Each is torchvision's, which a batch takes one of; an alpha of each decides how much."""
    found, expected = mixed(our_mix()), mixed(timms_mix())
    for column, name in enumerate(("share", "top", "left", "height", "width")):
        test = stats.ks_2samp(found[:, column], expected[:, column], method="asymp")
        assert test.pvalue > LEAST_P, (name, test)
