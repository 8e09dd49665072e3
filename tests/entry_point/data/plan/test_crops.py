from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms import RandomResizedCrop

from entry_point.config.data_config import DataConfig
from entry_point.data.plan.crops import CropPlan, CropPlanner
from entry_point.data.plan.samples import Samples

sides = st.integers(1, 5000)


@given(
    height=sides,
    width=sides,
    index=st.integers(0, 2**40),
    epoch=st.integers(0, 1000),
    low=st.floats(0.001, 1.0),
)
def test_random_boxes_lie_inside_the_image(
    height: int, width: int, index: int, epoch: int, low: float
) -> None:
    planner = CropPlanner(DataConfig(scale=[low, 1.0]), train=True, seed=1)
    plan = planner.plan(Samples.of(epoch, np.array([index])), np.array([height]), np.array([width]))
    top, left, box_height, box_width = plan.boxes[0]
    assert 0 <= top <= top + box_height <= height and box_height > 0
    assert 0 <= left <= left + box_width <= width and box_width > 0


@given(height=sides, width=sides, resize=st.integers(224, 1000))
def test_validation_boxes_are_centred_squares_of_the_right_share(
    height: int, width: int, resize: int
) -> None:
    planner = CropPlanner(DataConfig(resize=resize), train=False, seed=1)
    plan = planner.plan(Samples.of(0, np.array([5])), np.array([height]), np.array([width]))
    top, left, box_height, box_width = plan.boxes[0]
    assert box_height == box_width <= min(height, width)
    assert abs(box_height - max(1, min(height, width) * 224 / resize)) <= 0.5
    assert abs(top - (height - top - box_height)) <= 1
    assert abs(left - (width - left - box_width)) <= 1
    assert not plan.flips.any()


def _plan(seed: int, count: int, epoch: int = 0, **data: Any) -> CropPlan:
    planner = CropPlanner(DataConfig(**data), train=True, seed=seed)
    samples = Samples.of(epoch, np.arange(count))
    return planner.plan(samples, np.full(count, 533), np.full(count, 800))


@given(height=sides, width=sides)
def test_squashed_validation_takes_whole_images_of_any_size(height: int, width: int) -> None:
    data = DataConfig(image_size=512, crop="squash")  # above `resize`, which it does not need
    planner = CropPlanner(data, train=False, seed=1)
    plan = planner.plan(Samples.of(0, np.array([5])), np.array([height]), np.array([width]))
    assert plan.boxes.tolist() == [[0, 0, height, width]] and not plan.flips.any()


def test_random_boxes_are_distributed_like_torchvisions() -> None:
    boxes = _plan(seed=0, count=4000).boxes
    image = torch.empty(3, 533, 800)
    torch.manual_seed(0)
    reference = np.array(
        [RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(4000)]
    )
    deciles = np.arange(1, 10) / 10
    difference = np.quantile(boxes, deciles, axis=0) - np.quantile(reference, deciles, axis=0)
    assert np.abs(difference).max() < 20


def test_an_image_too_long_for_any_random_box_gives_the_largest_centred_one() -> None:
    planner = CropPlanner(DataConfig(scale=[1.0, 1.0]), train=True, seed=0)
    plan = planner.plan(
        Samples.of(0, np.array([0, 1])), np.array([100, 1000]), np.array([1000, 100])
    )
    assert plan.boxes.tolist() == [[0, 433, 100, 133], [433, 0, 133, 100]]


def test_seed_and_epoch_change_the_boxes() -> None:
    boxes = _plan(seed=0, count=64).boxes
    other_seed = _plan(seed=1, count=64).boxes
    other_epoch = _plan(seed=0, count=64, epoch=1).boxes
    assert (boxes != other_seed).any(axis=1).all()
    assert (boxes != other_epoch).any(axis=1).all()


def test_flips_follow_their_probability() -> None:
    assert not _plan(seed=0, count=100, hflip=0.0).flips.any()
    assert _plan(seed=0, count=100, hflip=1.0).flips.all()
    assert 0.45 < _plan(seed=0, count=4000, hflip=0.5).flips.mean() < 0.55
