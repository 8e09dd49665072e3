"""Several views of each image: the same with every engine, from any step on."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from entry_point.config.augment_config import AugmentConfig
from entry_point.config.data_config import DataConfig
from entry_point.data.plan.crops import CropPlanner
from entry_point.data.plan.samples import Samples, rows
from tests.entry_point.data.engines.every_engine import DALI, Way
from tests.entry_point.data.engines.test_augmented_engines import OWN, batches
from tests.entry_point.data.loaders import SIDE

PLAIN = AugmentConfig()
SIMCLR = AugmentConfig("simclr", erase=0.3)
SEVERAL: dict[str, Any] = {"views": 2}


@pytest.mark.parametrize("engine", ["workers", "pillow", DALI])
def test_other_engines_give_the_pixels_of_threads(photo_folder: Path, engine: Way) -> None:
    threads = batches(photo_folder, "threads", PLAIN, **SEVERAL)
    for one, other in zip(threads, batches(photo_folder, engine, PLAIN, **SEVERAL), strict=True):
        assert torch.equal(one.labels, other.labels)
        assert one.images.shape == other.images.shape == (24, 3, SIDE, SIDE)
        assert torch.equal(one.indices, other.indices)
        levels = (one.images.int() - other.images.int()).abs().float()
        assert levels.mean() <= 0.3 and (engine == "dali" or levels.max() <= 2)


def test_views_of_an_image_follow_each_other(photo_folder: Path) -> None:
    for single, several in zip(
        batches(photo_folder, "threads", PLAIN),
        batches(photo_folder, "threads", PLAIN, views=3),
        strict=True,
    ):
        assert torch.equal(several.indices, single.indices.repeat_interleave(3))
        assert torch.equal(several.labels, single.labels.repeat_interleave(3))


def test_augmented_views_are_the_same_from_any_step_on(photo_folder: Path) -> None:
    whole = batches(photo_folder, "threads", SIMCLR, **SEVERAL)
    late = batches(photo_folder, "threads", SIMCLR, step=2, **SEVERAL)
    for one, other in zip(whole[2:], late, strict=True):
        assert torch.equal(one.images, other.images)


def test_the_first_view_is_that_of_a_run_with_one_view(photo_folder: Path) -> None:
    single = batches(photo_folder, "threads", SIMCLR)
    several = batches(photo_folder, "threads", SIMCLR, **SEVERAL)
    for one, more in zip(single, several, strict=True):
        assert one.images.shape == (12, 3, SIDE, SIDE)
        assert torch.equal(one.images, more.images[::2])
        assert (more.images[::2] != more.images[1::2]).flatten(1).any(1).all()


def test_validation_has_one_plain_view(photo_folder: Path) -> None:
    several = batches(photo_folder, "threads", SIMCLR, "val", **SEVERAL)
    for one, more in zip(batches(photo_folder, "threads", PLAIN, "val"), several, strict=True):
        assert torch.equal(one.images, more.images)


def test_views_of_a_repeated_image_differ(photo_folder: Path) -> None:
    (batch, *_) = batches(photo_folder, "threads", PLAIN, views=2, repeats=3)
    for index in batch.indices.unique():
        views = batch.images[batch.indices == index].flatten(1)
        assert len(views.unique(dim=0)) == len(views)


def test_your_own_function_draws_for_each_view(photo_folder: Path) -> None:
    own = AugmentConfig(f"{OWN}.Noisy", per="sample")
    full: dict[str, Any] = {"scale": [1.0, 1.0], "ratio": [1.0, 1.0], "hflip": 0.0}
    plain = batches(photo_folder, "threads", PLAIN, views=3, **full)
    noisy = batches(photo_folder, "threads", own, views=3, **full)
    for before, after in zip(plain, noisy, strict=True):
        noise = after.images.int() - before.images.int()
        assert (noise[::3] != noise[1::3]).any() and (noise[1::3] != noise[2::3]).any()
    (alone, *_) = batches(photo_folder, "threads", own, **full)
    assert torch.equal(alone.images, noisy[0].images[::3])


def test_a_view_depends_on_its_image_and_number_alone() -> None:
    planner = CropPlanner(DataConfig(views=4), True, seed=3)
    sizes = np.full(200, 300), np.full(200, 500)
    whole = planner.plan(Samples.of(2, np.arange(200), views=4), *sizes)
    assert whole.boxes.shape == (800, 4) and whole.flips.shape == (800,)
    some = np.array([7, 199, 3])
    part = planner.plan(Samples.of(2, some, views=4), sizes[0][:3], sizes[1][:3])
    of_some = rows(some.tolist(), 4)
    assert np.array_equal(whole.boxes[of_some], part.boxes)
    assert np.array_equal(whole.flips[of_some], part.flips)
    assert 0.4 < whole.flips.mean() < 0.6
    assert len(np.unique(whole.boxes, axis=0)) > 790
