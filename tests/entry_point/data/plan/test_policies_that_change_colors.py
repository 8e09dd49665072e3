"""Color jitter, SimCLR's and erasing against torchvision's classes."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from tests.entry_point.data.plan.test_policies import NAMES, SIDE, tables

COUNT = 20_000
DECILES = np.arange(1, 10) / 10
JITTER = ("brightness", "contrast", "saturation", "hue")


def parameters(table: np.ndarray, name: str, column: int = 1) -> np.ndarray:
    """One parameter of all rows of an operation."""
    return table[table[..., 0] == NAMES.index(name)][:, column]


def test_jitters_factors_are_distributed_like_torchvisions() -> None:
    widths = {"brightness": 0.4, "contrast": 1.2, "saturation": 0.3, "hue": 0.1}
    table = tables(COUNT, "color_jitter", kwargs=widths)
    jitter = v2.ColorJitter(**widths)
    torch.manual_seed(0)
    drawn = [jitter.make_params([]) for _ in range(4000)]
    for name in JITTER:
        reference = np.quantile([each[f"{name}_factor"] for each in drawn], DECILES)
        found = np.quantile(parameters(table, name), DECILES)
        assert np.abs(found - reference).max() < 0.1 * widths[name]


def test_jitters_operations_come_in_all_orders_equally_often() -> None:
    table = tables(COUNT, "color_jitter", kwargs={"hue": 0.1})
    orders = Counter(map(tuple, table[..., 0].astype(int).tolist()))
    assert set(orders) == set(permutations(NAMES.index(name) for name in JITTER))
    expected = COUNT / 24
    assert sum((seen - expected) ** 2 / expected for seen in orders.values()) < 60


def test_a_jitter_of_zero_leaves_the_operation_out() -> None:
    table = tables(100, "color_jitter", kwargs={"brightness": 0})
    assert not {NAMES.index("brightness"), NAMES.index("hue")} & set(table[..., 0].ravel())


def test_simclr_jitters_greys_and_blurs_as_often_as_published() -> None:
    table = tables(COUNT, "simclr")
    shares = {
        name: (table[..., 0] == NAMES.index(name)).any(axis=1).mean()
        for name in (*JITTER, "grayscale", "gaussian_blur")
    }
    expected = dict.fromkeys(JITTER, 0.8) | {"grayscale": 0.2, "gaussian_blur": 0.5}
    assert shares == pytest.approx(expected, abs=0.015)
    assert set(parameters(table, "gaussian_blur")) == {23}
    sigmas = np.quantile(parameters(table, "gaussian_blur", 2), DECILES)
    assert sigmas == pytest.approx(0.1 + 1.9 * DECILES, abs=0.05)
    assert parameters(table, "hue").min() == pytest.approx(-0.2, abs=0.01)


@pytest.mark.parametrize("p", [0.25, 1.0])
def test_erased_rectangles_are_distributed_like_torchvisions(p: float) -> None:
    table = tables(COUNT, "erase", kwargs={"p": p})[:, 0]
    erased = table[table[:, 0] == NAMES.index("erase")]
    assert len(erased) / COUNT == pytest.approx(p, abs=0.01)
    assert (erased[:, 5:] == [124, 116, 104]).all()
    erasing, image = v2.RandomErasing(p=1), torch.empty(3, SIDE, SIDE)
    torch.manual_seed(0)
    drawn = [erasing.make_params([image]) for _ in range(4000)]
    reference = np.array([[each[key] for key in "ijhw"] for each in drawn])
    difference = np.quantile(erased[:, 1:5], DECILES, axis=0) - np.quantile(
        reference, DECILES, axis=0
    )
    assert np.abs(difference).max() < 8
    inside = erased[:, 1:3] + erased[:, 3:5]
    assert inside.max() <= SIDE and erased[:, 3:5].max() < SIDE
