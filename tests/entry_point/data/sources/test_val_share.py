"""Each class has its share of what training validates on, and lines say what is measured by few."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from entry_point.data.plan.philox import philox, unit
from entry_point.data.sources.dataset import gap_lines
from entry_point.data.sources.rows import PathList, Words
from entry_point.data.sources.source import FileSource
from entry_point.data.sources.splits import chosen_for_val, named
from tests import commands
from tests.entry_point.data.sources.small_datasets import (
    keys,
    opened,
    table,
    write,
)

SIZES = {"cat": 60, "dog": 48, "emu": 15, "fox": 2}
BY_HASH = {"cat": 3, "dog": 3, "emu": 3}
"""How many a hash below 0.1 chooses; the shares are 6, 5, 2 (of 1.5) and 1 (of 0.2)."""
TOPPED_UP = {"cat": 6, "dog": 5, "emu": 3, "fox": 1}
NAMES = [f"{name}/{number:02d}.jpg" for name, count in SIZES.items() for number in range(count)]
Named = dict[str, int]
"""The class of each image."""
DATASETS = st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 3), min_size=1)
FRACTIONS = st.one_of(st.floats(0.001, 0.999), st.sampled_from((0.1, 0.25, 0.5)))


def classes_of(names: Sequence[str]) -> NDArray[Any]:
    return np.unique([name.split("/")[0] for name in names], return_inverse=True)[1]


def val_of(images: Named, fraction: float) -> set[str]:
    chosen = chosen_for_val([*images], fraction, np.array([*images.values()]))
    return {name for name, is_val in zip(images, chosen.tolist(), strict=True) if is_val}


def hash_of(name: str) -> float:
    return float(unit(philox((0, 41), (zlib.crc32(name.encode()), 0, 0, 0))[0])[0])


def by_the_rule(images: Named, fraction: float) -> set[str]:
    """One class after the other, in plain Python."""
    chosen = {name for name in images if hash_of(name) < fraction}
    for number in {*images.values()}:
        of_class = sorted(
            (name for name in images if images[name] == number),
            key=lambda name: (hash_of(name), name.encode()),
        )
        share = max(math.floor(len(of_class) * fraction + 0.5), 1)
        chosen |= {*of_class[: min(share, len(of_class) - 1)]}
    return chosen


def val_counts(names: Sequence[str]) -> dict[str, int]:
    return Counter(name.split("/")[-2] for name in names)


@given(DATASETS, FRACTIONS)
def test_a_class_has_its_share_of_lowest_hashes(images: Named, fraction: float) -> None:
    """Whatever their order. So images of another class move none."""
    assert val_of(images, fraction) == by_the_rule(images, fraction)
    plain = chosen_for_val([*images], fraction)  # which depends on nothing but the name
    assert plain.tolist() == [hash_of(name) < fraction for name in images]


@pytest.mark.parametrize(
    ("words", "left_out", "said"),
    [
        ([""], {}, "4 images (no splits)"),
        (["train", "val"], {}, "3 images for train, 1 for val (by the folders)"),
        (
            ["test", "extra"],
            {"": 2},
            "3 images for test (by the folders); not used: 2 of no split, 1 of split 'extra'",
        ),
    ],
)
def test_the_images_of_each_split_are_counted_in_words(
    words: list[str], left_out: dict[str, int], said: str
) -> None:
    of = np.array([0, 0, 0, len(words) - 1])
    assert named(Words("the folders", words, of, left_out)).describe() == said


def test_names_decide_between_equal_hashes() -> None:
    names = ["plumless", "buckeroo"]
    assert zlib.crc32(names[0].encode()) == zlib.crc32(names[1].encode())
    for listed in (names, names[::-1]):
        assert val_of(dict.fromkeys(listed, 0), 0.01) == {"buckeroo"}


@pytest.mark.parametrize(
    ("count", "fraction", "val"),
    [(1, 0.1, 0), (1, 0.9, 0), (2, 0.001, 1), (2, 0.5, 1), (2, 0.9, 1), (15, 0.1, 2), (12, 0.1, 1)],
)
def test_a_share_is_rounded_and_leaves_an_image_to_train(
    count: int, fraction: float, val: int
) -> None:
    above = (name for name in map("{}.jpg".format, range(10000)) if hash_of(name) >= fraction)
    images = {name: 0 for name, _ in zip(above, range(count), strict=False)}
    assert len(images) == count and len(val_of(images, fraction)) == val


def test_a_path_list_is_divided_as_its_names() -> None:
    names = [*NAMES, "über/ä.jpg", "über/\udcff.jpg"]
    classes = classes_of(names)
    found = chosen_for_val(PathList.of_names(names), 0.1, classes)
    assert found.tolist() == chosen_for_val(names, 0.1, classes).tolist()
    assert found[-2:].sum() == 1


# Every kind of dataset


def test_folders_have_their_share_in_every_class(tmp_path: Path) -> None:
    """The images that the hash chooses stay val: a later release moves none back."""
    dataset = opened(write(tmp_path, *NAMES))
    val = keys(dataset.source("val"))
    assert val_counts(val) == TOPPED_UP
    assert "(val by a hash of the paths, val_fraction=0.1 of each class)" in dataset.found
    of_dogs = [Path(key).stem for key in val if "/dog/" in key]
    assert of_dogs == ["10", "12", "22", "23", "47"]
    plain = keys(opened(tmp_path, val_top_up=None).source("val"))
    assert val_counts(plain) == BY_HASH and {*plain} < {*val}
    assert not {*val} & {*keys(dataset.source("train"))}


def test_a_fraction_of_train_has_the_share_of_its_classes(tmp_path: Path) -> None:
    """The images of other splits do not count."""
    write(tmp_path, *(f"train/{name}" for name in NAMES), "test/fox/1.jpg", "test/gnu/1.jpg")
    dataset = opened(tmp_path, val_fraction=0.25)
    assert "val_fraction=0.25 of each class of train" in dataset.found
    counts = val_counts(keys(dataset.source("val")))
    assert all(counts[name] >= count / 4 for name, count in SIZES.items()) and counts["fox"] == 1
    assert len(dataset.source("test")) == 2


@pytest.mark.parametrize("cells", ["cat|dog", "0.5"])
def test_several_labels_and_numbers_are_divided_by_the_hash_alone(
    tmp_path: Path, cells: str
) -> None:
    write(tmp_path, *NAMES)
    dataset = opened(table(tmp_path / "labels.csv", [f"{name},{cells}" for name in NAMES]))
    assert val_counts(keys(dataset.source("val"))) == BY_HASH
    assert dataset.found.endswith("(val by a hash of the paths, val_fraction=0.1)")


# What is measured by few images


def source_of(counts: Named, kind: Any = "class") -> FileSource:
    labels = np.repeat(np.arange(len(counts)), [*counts.values()])
    names = [f"{number}.jpg" for number in range(len(labels))]
    shown = labels if kind == "class" else np.eye(len(counts))[labels]
    return FileSource(names, shown, [*counts], kind)


def lines_of(train: Named, val: Named, kind: Any = "class") -> list[str]:
    return [*gap_lines({"train": source_of(train, kind), "val": source_of(val, kind)})]


def test_classes_of_few_images_are_named_with_what_one_image_is() -> None:
    train = {"ant": 90, "bee": 90, "cat": 90}
    assert lines_of(train, {"ant": 10, "bee": 10, "cat": 11}) == []
    assert lines_of(train, {"ant": 9, "bee": 6, "cat": 10}) == [
        "val has fewer than 10 images of 2 of 3 classes (bee: 6, ant: 9): one image is 17 % of the "
        "accuracy of bee"
    ]
    assert lines_of(train, {"ant": 9, "bee": 10, "cat": 10}, "labels")[0].endswith(
        "of 1 of 3 classes (ant: 9): one image is 11 % of the recall of ant"
    )
    many = dict.fromkeys("abcdefg", 1)
    assert lines_of(many, many) == [
        "val has fewer than 10 images of 7 of 7 classes (a: 1, b: 1, c: 1, d: 1, e: 1, ...): one "
        "image is 100 % of the accuracy of a"
    ]


def test_no_class_is_in_two_lines() -> None:
    """Neither a class without images in val, nor one that the model cannot know."""
    lines = lines_of({"ant": 0, "bee": 9, "cat": 9}, {"ant": 3, "bee": 0, "cat": 4})
    assert [line.partition(": ")[0] for line in lines] == [
        "train has no images of 1 of 3 classes (ant)",
        "val has no images of 1 of 3 classes (bee)",
        "val has fewer than 10 images of 1 of 3 classes (cat",
    ]
    assert "the model cannot learn them: add images" in lines[0]
    assert lines_of({"age": 3}, {"age": 3}, "numbers") == []


def test_check_dataset_says_what_few_images_measure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = [name for name in NAMES if name[:3] in ("cat", "emu")]
    write(tmp_path, *(f"train/{name}" for name in names), *(f"val/{name}" for name in names[:66]))
    with caplog.at_level("INFO"):
        assert commands.check_dataset([f"root={tmp_path}"]) == 0
    line = "val has fewer than 10 images of 1 of 2 classes (emu: 6): one image is 17 % of the accur"
    assert caplog.text.count(line) == 1
    caplog.clear()
    with caplog.at_level("INFO"):
        assert commands.check_dataset([f"root={tmp_path / 'train'}"]) == 0
    assert "has fewer" not in caplog.text and "no images of" not in caplog.text
