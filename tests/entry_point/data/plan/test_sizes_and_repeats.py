"""Repeated augmentation, progressive resizing and another size for validation."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from entry_point.config.augment_config import AugmentConfig
from entry_point.config.checking import check_config
from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import DataConfig
from entry_point.data.plan.order import EpochPlan
from entry_point.data.plan.samples import split_repeats
from tests.entry_point.data.engines.every_engine import Way
from tests.entry_point.data.loaders import epoch_of, loader_of

AUGMENTED = {"augment": AugmentConfig("trivial", erase=0.5)}


@given(
    count=st.integers(8, 200),
    repeats=st.integers(2, 9),
    batch_size=st.integers(1, 8),
    epoch=st.integers(0, 5),
    start=st.integers(0, 30),
)
def test_an_epoch_has_as_many_samples_of_fewer_images_from_any_step(
    count: int, repeats: int, batch_size: int, epoch: int, start: int
) -> None:
    plan = EpochPlan(count, batch_size, 3, True, repeats=repeats)
    assert plan.steps_per_epoch == EpochPlan(count, batch_size, 3, True).steps_per_epoch
    steps = list(plan.batches(epoch))
    late = list(plan.batches(epoch, min(start, len(steps))))
    assert all(map(np.array_equal, steps[min(start, len(steps)) :], late))
    samples = np.concatenate(steps)
    images, _ = split_repeats(samples)
    seen = Counter(images.tolist())
    # The epoch's end cuts the last image's repeats.
    assert sorted(seen.values())[1:] == [repeats] * (len(seen) - 1)
    assert len(set(samples.tolist())) == len(samples)


@given(st.sampled_from([1, 2, 3, 4, 6]), st.integers(2, 6))
def test_a_step_holds_the_same_repeats_on_any_number_of_ranks(ranks: int, repeats: int) -> None:
    alone = EpochPlan(100, 12, 3, True, repeats=repeats)
    shares = [
        EpochPlan(100, 12 // ranks, 3, True, rank, ranks, repeats=repeats) for rank in range(ranks)
    ]
    for step, *parts in zip(alone.batches(2), *(r.batches(2) for r in shares), strict=True):
        assert sorted(step) == sorted(np.concatenate(parts))


def images_of(plan: EpochPlan) -> list[Any]:
    """The images of each step."""
    return [split_repeats(samples)[0] for samples in plan.batches(0)]


@pytest.mark.parametrize("repeats", [3, 4])
def test_eight_ranks_each_get_as_many_images_as_with_deits_sampler(repeats: int) -> None:
    """RASampler of facebookresearch/deit gives rank r the positions r, r + 8, r + 16, ..."""
    count, batch, ranks = 128 * 8 * 6, 128, 8
    for rank in (0, 5):
        repeated = np.repeat(np.arange(count), repeats)[rank:count:ranks]
        theirs = [len(set(repeated[i : i + batch])) for i in range(0, len(repeated), batch)]
        plan = EpochPlan(count, batch, 3, True, rank, ranks, repeats=repeats)
        assert [len(set(images)) for images in images_of(plan)] == theirs
        assert min(theirs) == batch


@given(ranks=st.sampled_from([1, 2, 3, 8]), repeats=st.integers(1, 9), images=st.integers(2, 20))
def test_mixup_never_blends_an_image_with_itself(ranks: int, repeats: int, images: int) -> None:
    """torchvision blends each image of a batch with the one before it, the first with the last."""
    batch = repeats * images
    for rank in range(ranks):
        plan = EpochPlan(3 * batch * ranks, batch, 3, True, rank, ranks, repeats=repeats)
        for own in images_of(plan):
            assert not (own == np.roll(own, 1)).any()


def test_each_repeat_has_its_own_box_and_augmentation(photo_folder: Path) -> None:
    batch, *_ = epoch_of(loader_of(photo_folder, spec=AUGMENTED, repeats=3))
    assert batch.indices.view(3, 4).unique(dim=0).shape == (1, 4)
    assert len({tuple(image.flatten().tolist()) for image in batch.images}) == 12


@pytest.mark.parametrize("engine", ["threads", "pillow"])
def test_the_image_size_follows_the_epoch_also_from_a_later_step(
    photo_folder: Path, engine: Way
) -> None:
    data: dict[str, Any] = {"progressive": [[0, 16], [2, 24]], "image_size": 40}
    train = loader_of(photo_folder, engine, workers=0, spec=AUGMENTED, **data)
    sizes = [next(train.epoch(epoch)).images.shape[2:] for epoch in (0, 1, 2, 7)]
    assert sizes == [(16, 16), (16, 16), (24, 24), (24, 24)]
    whole, late = list(train.epoch(2)), list(train.epoch(2, 2))
    assert all(torch.equal(a.images, b.images) for a, b in zip(whole[2:], late, strict=True))
    train.close()
    for batch in epoch_of(loader_of(photo_folder, engine, "val", workers=0, **data)):
        assert batch.images.shape[2:] == (40, 40)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"image_size": 300}, "data.resize=256: must be at least data.image_size=300"),
        (
            {"progressive": [[0, 64], [5, 9], [5, 80]]},
            "data.progressive=[[0,64],[5,9],[5,80]]: must start at epoch 0, with ascending "
            "epochs, as in [[0,128],[10,160]]",
        ),
        (
            {"progressive": [[0, 0]]},
            "data.progressive=[[0,0]]: must be pairs of an epoch and a size of at most 4096",
        ),
        ({"repeats": 0}, "data.repeats=0: Input should be greater than or equal to 1"),
        (
            {"repeats": 2, "format": "shards", "access": "stream"},
            "data.repeats=2: needs data.access=map: a stream reads each shard once",
        ),
    ],
)
def test_a_wrong_size_or_repeat_is_one_line(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_config(settings, DataConfig, "data")
    assert str(caught.value) == error
