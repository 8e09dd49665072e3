"""Policies against torchvision's classes: what they can draw, and how often."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from custom_op.augment_ops import PARAMETERS
from entry_point.config.augment.augment_config import AugmentConfig
from entry_point.data.plan.augment.augmenter import build_augmenter

SIDE = 224
NAMES = list(PARAMETERS)
# torchvision's operation -> ours, and how its magnitude becomes our parameter.
AS_OURS: dict[str, tuple[str, Any]] = {
    "Identity": ("identity", None),
    "ShearX": ("shear_x", float),
    "ShearY": ("shear_y", float),
    "TranslateX": ("translate_x", int),
    "TranslateY": ("translate_y", int),
    "Rotate": ("rotate", float),
    "Brightness": ("brightness", lambda m: 1 + m),
    "Color": ("saturation", lambda m: 1 + m),
    "Contrast": ("contrast", lambda m: 1 + m),
    "Sharpness": ("sharpness", lambda m: 1 + m),
    "Posterize": ("posterize", int),
    "Solarize": ("solarize", lambda m: math.ceil(np.float32(255 * m))),
    "AutoContrast": ("autocontrast", None),
    "Equalize": ("equalize", None),
    "Invert": ("invert", None),
}
Drawn = tuple[tuple[str, float], ...]
"""The operations of one sample, without identities: name, and the first parameter."""


def tables(count: int, name: str | None, side: int = SIDE, **augment: Any) -> np.ndarray:
    augmenter = build_augmenter(AugmentConfig(name, **augment), [0.485, 0.456, 0.406])
    assert augmenter is not None
    return augmenter.table(3, 0, np.arange(count), 0, side)


def ours(table: np.ndarray, *, keep_identity: bool = False) -> list[Drawn]:
    return [
        tuple((NAMES[int(r[0])], round(float(r[1]), 4)) for r in sample if r[0] or keep_identity)
        for sample in table
    ]


def theirs(transform: Any, count: int, monkeypatch: pytest.MonkeyPatch) -> list[Drawn]:
    """What torchvision's class draws, in our words."""
    drawn: list[tuple[str, float]] = []

    def note(image: object, name: str, magnitude: float, **_: object) -> object:
        word, parameter = AS_OURS[name]
        value = float(np.float32(parameter(magnitude))) if parameter else 0.0
        drawn.append((word, round(value, 4)))
        return image

    monkeypatch.setattr(transform, "_apply_image_or_video_transform", note)
    torch.manual_seed(0)
    image, samples = torch.zeros(3, SIDE, SIDE, dtype=torch.uint8), []
    for _ in range(count):
        drawn.clear()
        transform(image)
        samples.append(tuple(drawn))
    return samples


def assert_same_distribution(left: list[Drawn], right: list[Drawn], slack: float = 5.0) -> None:
    """Two samples of one distribution over a finite set: a chi-square test of homogeneity."""
    first, second = Counter(left), Counter(right)
    kinds = set(first) | set(second)
    share = len(left) / (len(left) + len(right))
    statistic = 0.0
    for kind in kinds:
        total = first[kind] + second[kind]
        for seen, expected in ((first, total * share), (second, total * (1 - share))):
            statistic += (seen[kind] - expected) ** 2 / expected
    freedom = len(kinds) - 1
    assert statistic < freedom + slack * math.sqrt(2 * freedom), (statistic, freedom)


def test_trivial_draws_what_torchvision_can_draw_equally_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = ours(tables(60_000, "trivial"), keep_identity=True)
    reference = theirs(v2.TrivialAugmentWide(), 12_000, monkeypatch)
    assert set(reference) == set(drawn)
    assert_same_distribution(drawn, reference)


@pytest.mark.parametrize(("n", "m"), [(1, 0), (2, 9), (1, 30)])
def test_rand_draws_what_torchvision_can_draw_equally_often(
    n: int, m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = ours(tables(20_000, "rand", kwargs={"n": n, "m": m}), keep_identity=True)
    reference = theirs(v2.RandAugment(n, m), 5_000, monkeypatch)
    assert set(reference) == set(drawn)
    assert_same_distribution(drawn, reference)


def test_auto_draws_torchvisions_imagenet_policies_equally_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = ours(tables(20_000, "auto"))
    reference = theirs(v2.AutoAugment(), 6_000, monkeypatch)
    assert set(reference) == set(drawn)
    assert_same_distribution(drawn, reference)


@pytest.mark.parametrize("name", ["trivial", "rand", "auto"])
def test_geometry_has_the_interpolation_and_fill_that_are_set(name: str) -> None:
    plain = tables(2000, name)
    filled = tables(2000, name, kwargs={"interpolation": "bilinear", "fill": [1, 2, 3]})
    moves = np.isin(plain[..., 0], [NAMES.index(each) for each in NAMES[13:18]])
    assert moves.any() and not plain[moves][:, 2:6].any()
    assert (filled[moves][:, 2:6] == [1, 1, 2, 3]).all()
    assert np.array_equal(filled[~moves], plain[~moves])


def test_a_sample_draws_the_same_in_any_batch_and_another_in_another_epoch_or_repeat() -> None:
    augmenter = build_augmenter(AugmentConfig("rand", erase=0.5), [0.5, 0.5, 0.5])
    assert augmenter is not None
    whole = augmenter.table(3, 4, np.arange(256), 0, 96)
    some = np.array([200, 7, 31])
    assert np.array_equal(augmenter.table(3, 4, some, 0, 96), whole[some])
    assert np.array_equal(
        augmenter.table(3, 4, some, np.array([0, 1, 0]), 96)[::2], whole[some][::2]
    )
    for other in (
        augmenter.table(4, 4, np.arange(256), 0, 96),
        augmenter.table(3, 5, np.arange(256), 0, 96),
        augmenter.table(3, 4, np.arange(256), np.ones(256, dtype=np.int64), 96),
    ):
        assert (other != whole).any(axis=(1, 2)).mean() > 0.9


def test_erasing_after_a_policy_leaves_the_policys_draws() -> None:
    plain, erased = tables(500, "trivial"), tables(500, "trivial", erase=0.5)
    assert np.array_equal(erased[:, :1], plain)
    assert set(erased[:, 1, 0]) == {0, NAMES.index("erase")}


def test_every_policy_writes_rows_that_the_operations_take() -> None:
    """Parameters in range, unused columns 0."""
    limits = {"factor": (-0.5, 4), "bits": (0, 8), "threshold": (0, 256), "bilinear": (0, 1)}
    for name in ("trivial", "rand", "auto", "color_jitter", "simclr", "three", "erase"):
        for side in (1, 8, 32, 224):
            table = tables(300, name, side=side)
            assert table.dtype == np.float32 and table.flags.c_contiguous
            assert table.shape[::2] == (300, 8)
            assert np.isfinite(table).all()
            for cells in table.reshape(-1, 8):
                names = PARAMETERS[NAMES[int(cells[0])]]
                assert not cells[1 + len(names) :].any()
                for parameter, value in zip(names, cells[1:].tolist(), strict=False):
                    low, high = limits.get(parameter, (-math.inf, math.inf))
                    assert low <= value <= high
                if "kernel_size" in names:
                    assert cells[1] % 2 == 1 and cells[1] // 2 < max(side, 2) and cells[2] > 0


def test_torchvisions_operations_are_all_known() -> None:
    spaces = (v2.TrivialAugmentWide, v2.RandAugment, v2.AutoAugment)
    assert {each for space in spaces for each in space._AUGMENTATION_SPACE} == set(AS_OURS)
