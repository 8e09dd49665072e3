"""Tables of policies: which draws depend on what, and that the operator takes every row."""

from typing import Any

import numpy as np
import pytest

from custom_op.augment_ops import PARAMETERS
from entry_point.config.augment_config import AugmentConfig
from entry_point.data.plan.policies import MOVES, build_augmenter
from entry_point.data.plan.samples import Samples

SIDE = 224
NAMES = list(PARAMETERS)


def tables(count: int, name: str | None, side: int = SIDE, **augment: Any) -> np.ndarray:
    augmenter = build_augmenter(AugmentConfig(name, **augment), [0.485, 0.456, 0.406])
    assert augmenter is not None
    return augmenter.table(3, Samples.of(0, np.arange(count)), side)


@pytest.mark.parametrize("name", ["trivial", "rand_timm"])
def test_geometry_has_the_interpolation_and_fill_that_are_set(name: str) -> None:
    plain = tables(2000, name)
    filled = tables(2000, name, kwargs={"interpolation": "bilinear", "fill": [1, 2, 3]})
    moves = np.isin(plain[..., 0], [NAMES.index(each) for each in MOVES])
    assert moves.any() and not plain[moves][:, 2:6].any()
    assert (filled[moves][:, 2:6] == [1, 1, 2, 3]).all()
    assert np.array_equal(filled[~moves], plain[~moves])


@pytest.mark.parametrize(("name", "kwargs"), [("trivial", {}), ("rand_timm", {"p": 1, "mstd": 2})])
def test_a_sample_draws_the_same_in_any_batch_and_another_in_another_epoch_or_repeat(
    name: str, kwargs: dict[str, Any]
) -> None:
    augmenter = build_augmenter(AugmentConfig(name, kwargs, erase=0.5), [0.5, 0.5, 0.5])
    assert augmenter is not None
    whole = augmenter.table(3, Samples.of(4, np.arange(256)), 96)
    some = np.array([200, 7, 31])
    assert np.array_equal(augmenter.table(3, Samples.of(4, some), 96), whole[some])
    assert np.array_equal(
        augmenter.table(3, Samples.of(4, some, np.array([0, 1, 0])), 96)[::2], whole[some][::2]
    )
    for other in (
        augmenter.table(4, Samples.of(4, np.arange(256)), 96),
        augmenter.table(3, Samples.of(5, np.arange(256)), 96),
        augmenter.table(3, Samples.of(4, np.arange(256), np.ones(256, dtype=np.int64)), 96),
    ):
        assert (other != whole).any(axis=(1, 2)).mean() > 0.9


def test_erasing_after_a_policy_leaves_the_policys_draws() -> None:
    plain, erased = tables(500, "trivial"), tables(500, "trivial", erase=0.5)
    assert np.array_equal(erased[:, :1], plain)
    assert set(erased[:, 1, 0]) == {0, NAMES.index("erase")}
