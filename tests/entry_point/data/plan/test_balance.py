"""data.balance=classes: how often each class is drawn, and that nothing but the seed decides."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from entry_point.config.checking import check_config
from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import DataConfig
from entry_point.data.plan.order import EpochPlan, Weights, draw, draw_weights
from entry_point.data.plan.samples import split_repeats, with_repeats
from entry_point.data.sources.source import FileSource
from tests.entry_point.data.loaders import epoch_of, indices_of, loader_of
from tests.photographs import write_photo_folder

# Rare, common, absent.
COUNTS = {0: 3, 1: 900, 3: 97}


def source_of(labels: object, classes: int = 4, kind: str = "class") -> FileSource:
    names = [str(number) for number in range(classes)]
    return FileSource([], labels, names, kind)  # type: ignore[arg-type]


def weights_of(source: FileSource) -> Weights:
    return draw_weights(source.kind, source.labels, len(source.classes))


def test_classes_are_drawn_equally_often() -> None:
    labels = np.repeat(list(COUNTS), list(COUNTS.values()))
    weights = weights_of(source_of(labels))
    drawn = np.concatenate([draw(weights, seed=1, epoch=epoch) for epoch in range(60)])
    shares = np.bincount(labels[drawn], minlength=4) / len(drawn)
    assert np.abs(shares - [1 / 3, 1 / 3, 0, 1 / 3]).max() < 0.01
    of_rare = np.bincount(drawn, minlength=1000)[:3] / len(drawn)
    assert np.abs(of_rare - 1 / 9).max() < 0.01


def test_images_with_several_labels_count_by_their_rarest() -> None:
    rows = [[1, 0]] * 90 + [[1, 1]] * 5 + [[0, 0]] * 5
    weights = weights_of(source_of(rows, 2, "labels"))
    assert weights == pytest.approx([1 / 95] * 90 + [1 / 5] * 10)


@pytest.mark.parametrize("kind", ["numbers", "targets"])
def test_numbers_and_targets_cannot_be_balanced(kind: str) -> None:
    with pytest.raises(ConfigError) as raised:
        weights_of(source_of([0.5] * 3, 1, kind))
    assert str(raised.value) == (
        f"data.balance=classes: needs classes or labels, but the dataset has {kind}; remove it"
    )


def test_a_stream_cannot_be_balanced() -> None:
    stream = {"balance": "classes", "format": "shards", "access": "stream"}
    with pytest.raises(ConfigError, match=r"data.balance=classes: .*needs data.access=map"):
        check_config(stream, DataConfig, "data")


@given(
    st.lists(st.floats(0.001, 1), min_size=24, max_size=200),
    st.integers(0, 5),
    st.sampled_from([1, 2, 3, 4]),
    st.integers(0, 3),
)
def test_ranks_and_resumed_epochs_see_the_same_draws(
    weights: list[float], epoch: int, ranks: int, start: int
) -> None:
    every = np.array(weights)
    alone = list(EpochPlan(len(every), 12, 7, True, weights=every).batches(epoch))
    shared = [
        list(EpochPlan(len(every), 12 // ranks, 7, True, rank, ranks, every).batches(epoch, start))
        for rank in range(ranks)
    ]
    steps = [np.stack(step, axis=1).ravel() for step in zip(*shared, strict=True)]  # dealt in turn
    assert len(steps) == max(0, len(alone) - start)
    assert all(np.array_equal(a, b) for a, b in zip(alone[start:], steps, strict=True))


@given(st.lists(st.integers(0, 9)))
def test_repeats_count_the_earlier_draws(order: list[int]) -> None:
    samples = with_repeats(np.array(order, dtype=np.int64))
    indices, repeats = split_repeats(samples)
    assert indices.tolist() == order
    expected = [order[:place].count(image) for place, image in enumerate(order)]
    assert (repeats if repeats is not None else np.zeros(len(order))).tolist() == expected


@pytest.fixture(scope="module")
def lopsided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One photograph of a cat, six of each other class."""
    root = write_photo_folder(tmp_path_factory.mktemp("lopsided") / "root", train=6, val=1)
    for file in sorted((root / "train" / "cat").iterdir())[1:]:
        file.unlink()
    return root


def test_other_processes_give_the_same_balanced_samples_from_any_step(lopsided: Path) -> None:
    expected = epoch_of(loader_of(lopsided, balance="classes"), 1)[1:]
    found = epoch_of(loader_of(lopsided, "workers", workers=2, balance="classes"), 1, 1)
    for a, b in zip(expected, found, strict=True):
        assert torch.equal(a.indices, b.indices) and torch.equal(a.labels, b.labels)
        assert torch.equal(a.images, b.images)


def test_validation_is_never_balanced(lopsided: Path) -> None:
    loader = loader_of(lopsided, split="val", batch_size=5, balance="classes")
    assert indices_of(epoch_of(loader)) == list(range(8))
