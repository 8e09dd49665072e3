"""Which folders are classes, which are splits, and which are neither."""

from __future__ import annotations

import logging
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from entry_point.data.errors import DataError
from entry_point.data.sources.dataset import require_shared_classes
from entry_point.data.sources.folder import Tree
from tests.entry_point.data.sources.small_datasets import (
    counts,
    keys,
    opened,
    refusal,
    table,
    write,
)


def filled(root: Path, *folders: str, count: int = 20) -> Path:
    return write(root, *(f"{folder}/{i}.jpg" for folder in folders for i in range(count)))


def of_splits(*folders: str) -> list[str]:
    return [f"{folder}/{name}" for folder in folders for name in ("sea", "wood")]


@pytest.mark.parametrize(
    ("folders", "splits"),
    [
        (of_splits("seg_train", "seg_test"), ["train", "test"]),
        ([*of_splits("seg_train/seg_train", "seg_test/seg_test"), "seg_pred"], ["train", "test"]),
        (of_splits("training_set", "validation_set"), ["train", "val"]),
        (of_splits("train", "eval"), ["train", "val"]),
        ([*of_splits("Training", "Testing"), "docs"], ["train", "test"]),
        ([*of_splits("train", "valid", "train_augmented")], ["train", "val"]),
        (of_splits("imgs/train", "imgs/val"), ["train", "val"]),
        (of_splits("archive/dataset/train", "archive/dataset/val"), ["train", "val"]),
        (of_splits("train/train", "val/val"), ["train", "val"]),
        (of_splits("train/images", "val/images"), ["train", "val"]),
        ([*of_splits("train/train"), "test/test"], ["train"]),
        ([*of_splits("train", "valid"), "test"], ["train", "val"]),
        ([*of_splits("train", "val"), *of_splits("set/train", "set/val")], ["train", "val"]),
        (["sea/train", "sea/val", "wood/train", "wood/val"], ["train", "val"]),
        (["set/sea/train", "set/wood/train", "set/wood/test"], ["train", "test"]),
        (of_splits("archive/dataset"), ["all"]),
        (of_splits("photos"), ["all"]),
        (["sea/images", "wood/images"], ["all"]),
        (["sea/monday", "wood", "wood/tuesday", "wood/sunday"], ["all"]),
    ],
)
def test_folders_above_and_in_the_class_folders_are_no_classes(
    tmp_path: Path, folders: list[str], splits: list[str]
) -> None:
    root = filled(tmp_path, *folders, count=2)
    dataset = opened(root, for_training=False)
    assert dataset.data.format == "folder" and [*dataset.splits] == splits
    source = dataset.source("all")
    assert source.classes == ["sea", "wood"]
    names = keys(source)
    assert names == keys(opened(root, for_training=False, format="folder").source("all"))
    labels = [source.classes[label] for label in source.labels.tolist()]
    assert all(label in Path(name).parts for label, name in zip(labels, names, strict=True))
    assert all(Path(name).is_file() for name in names)


def test_what_is_read_and_what_is_not_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path, *of_splits("seg_train/seg_train", "seg_test/seg_test"), "seg_pred", count=2)
    with caplog.at_level(logging.INFO):
        opened(tmp_path)
    read = "the class folders lie in seg_train/seg_train (train), seg_test/seg_test (test)"
    assert read in caplog.text and "ignored: seg_pred" in caplog.text


def test_a_test_set_without_a_class_of_train_is_named_and_adds_no_class(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = filled(tmp_path, *of_splits("train", "val"), "test/images", count=2)
    dataset = opened(root, for_training=False)
    assert [*dataset.splits] == ["train", "val"]
    assert dataset.source("train").classes == ["sea", "wood"]
    assert f"{root}/test is not used: none of its folders (images) is a class" in caplog.text
    alone = filled(tmp_path / "alone", *of_splits("test"), count=2)
    assert opened(alone, for_training=False).source("test").classes == ["sea", "wood"]


@pytest.mark.parametrize("names", [("bus", "car", "train"), ("bus", "car", "val"), ("dev", "x")])
def test_a_class_called_as_a_split_beside_others_is_a_class(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    root = filled(tmp_path / "flat", *names)
    for form in ("auto", "folder"):
        assert opened(root, format=form).source("train").classes == sorted(names)
    inside = filled(
        tmp_path / "set", *(f"{split}/{n}" for split in ("train", "val") for n in names)
    )
    assert opened(inside).source("val").classes == sorted(names)


@pytest.mark.parametrize(
    ("folders", "words"),
    [
        (["train", "test", "bus"], "test and train may be splits, or classes as bus: .* rename"),
        (["train", "test"], "no class folders: images lie directly in train, test: .* a table"),
        (["train", "test1"], "no class folders: images lie directly in train, test1"),
        (["train_images", "test_images"], "no class folders: images lie directly in train_images"),
        (["train/train", "test/test"], "no class folders: images lie directly in train/train"),
        (["train_a/sea", "train_b/sea", "test/sea"], "train_a and train_b are both for train"),
        (["a/sea", "a/wood", "b/sea", "b/wood"], "a, b hold no images themselves, only folders"),
        (["sea", "wood", "copy/sea", "copy/wood"], "copy holds the folders sea, wood, which are"),
        (["images"], "no class folders, but images in images"),
        (["HAM_images_part_1", "HAM_images_part_2"], "no class folders, but images in HAM_images_"),
        (["images_1/images", "images_2/images"], "no class folders, but images in images_1, image"),
        (["train/train/sea", "train/val/sea", "val/sea"], r"no classes, but train and val: set da"),
    ],
)
def test_a_level_that_may_be_two_things_is_refused_in_words(
    tmp_path: Path, folders: list[str], words: str
) -> None:
    root = filled(tmp_path, *folders, count=2)
    for form in ("auto", "folder"):
        assert re.search(words, refusal(root, for_training=False, format=form))


def test_what_the_refusal_of_two_levels_says_to_type_works(tmp_path: Path) -> None:
    root = filled(tmp_path / "set", "sea/day1", "sea/day2", "wood/day1", "wood/day2")
    message = refusal(root)
    assert f"move or link them into {root}/train and add data.val_fraction=0.1" in message
    assert f"set data.root={root}/sea" in message
    assert opened(root / "sea").source("train").classes == ["day1", "day2"]
    (root / "train").mkdir()
    for name in ("sea", "wood"):
        (root / name).rename(root / "train" / name)
    assert opened(root, val_fraction=0.1).source("train").classes == ["sea", "wood"]


def test_a_folder_of_other_files_is_no_class_and_an_empty_one_or_one_of_heic_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = filled(tmp_path, "sea", "wood")
    (root / "fox").mkdir()
    table(root / "notes/a.txt", [])
    table(root / "rare/1.heic", [])
    with caplog.at_level(logging.WARNING):
        assert opened(root).source("train").classes == ["fox", "rare", "sea", "wood"]
    assert "no classes, because they hold files but no images: notes" in caplog.text


def test_images_beside_annotations_are_a_level_or_no_classes(tmp_path: Path) -> None:
    breeds = filled(tmp_path / "breeds", "images")
    pets = filled(tmp_path / "pets", "images/cat", "images/dog")
    for root in (breeds, pets):
        table(root / "annotations/list.txt", ["pug_0 1"])
    assert "images in images and other files in annotations" in refusal(breeds)
    assert opened(pets).source("train").classes == ["cat", "dog"]


SYSTEMS = (
    *("lost+found", "$RECYCLE.BIN", "System Volume Information", "#recycle", "@eaDir", "@Recycle"),
    *("__MACOSX", ".ipynb_checkpoints", ".git", ".Trash-1000", ".@__thumb", "#snapshot", "@tmp"),
)


@pytest.mark.parametrize(
    ("images", "masks"),
    [
        ("train/*.jpg", "train_masks/*_mask.gif"),  # Carvana
        ("Training_Data/*.jpg", "Training_GroundTruth/*_segmentation.png"),  # ISIC
        ("image/*.png", "gt/*.png"),
        ("training/images/*_training.tif", "training/1st_manual/*_manual1.gif"),  # DRIVE
    ],
)
def test_photos_and_their_masks_are_no_classes(tmp_path: Path, images: str, masks: str) -> None:
    names = [each.replace("*", str(i)) for each in (images, masks) for i in range(20)]
    message = refusal(write(tmp_path, *names))
    assert "hold as many images each: if one holds the masks of the other" in message
    assert "a table with the columns path,mask" in message


def test_folders_of_systems_are_neither_classes_nor_images(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = filled(tmp_path / "set", *(f"{s}/{c}" for s in ("train", "val") for c in ("a", "b")))
    for above in ("", "train/", "train/a/"):
        filled(root, *(f"{above}{name}/x" for name in SYSTEMS), count=1)
    for name in ("Thumbs.db", "desktop.ini", ".DS_Store", "._0.jpg"):
        (root / "train/a" / name).write_text("")
    with caplog.at_level(logging.WARNING):
        assert counts(opened(root)) == {"train": 40, "val": 40}
    assert "ignored" not in caplog.text and "skipping" not in caplog.text
    assert opened(root).source("train").classes == ["a", "b"]
    assert len([*Tree(root).files()]) == 80
    (root / "recipe.json").write_text("{}")  # once the name of a file of the demo
    assert "recipe.json" in Tree(root).files()
    assert len(opened(root, for_training=False).source("all")) == 80


def test_an_archive_in_the_place_of_a_dataset_names_what_unpacks_it(tmp_path: Path) -> None:
    photos, channel = filled(tmp_path / "photos", "cat", "dog"), tmp_path / "a channel"
    channel.mkdir()
    for name in ("a.zip", "b.7z", "c.rar", "photos.tgz", "photos.tar"):
        file = channel / name
        form = "gztar" if file.suffix == ".tgz" else "tar"
        Path(shutil.make_archive(str(channel / "packed"), form, photos)).rename(file)
        program = {"a.zip": "unzip -q", "b.7z": "7z x", "c.rar": "unar"}.get(name, "mkdir -p")
        for message in (refusal(channel), refusal(file), refusal(channel, format="folder")):
            assert f"`{program}" in message and "unpack" in message
            assert shlex.quote(str(file)) in message
        if "tar" in message:
            folder = Path(message.split("data.root=")[1])
            subprocess.run(["bash", "-c", message.split("`")[1]], check=True)
            assert opened(folder).source("train").classes == ["cat", "dog"]
            shutil.rmtree(folder)
        file.unlink()


def test_a_wrapped_dataset_of_another_form_names_its_folder(tmp_path: Path) -> None:
    write(tmp_path / "set/inner", *(f"images/{i}.jpg" for i in range(20)))
    table(tmp_path / "set/inner/labels.csv", [f"images/{i}.jpg,{'ab'[i % 2]}" for i in range(20)])
    root = tmp_path / "set"
    assert f"a table: set data.root={root}/inner" in refusal(root)
    assert opened(root / "inner").data.format == "manifest"


@pytest.mark.parametrize(
    ("folders", "words"),
    [
        (("train/Cat", "val/cat"), "differ in case only: Cat and cat; rename them"),
        (
            ("train/n01", "train/n02", "val/images"),
            r"no class of val \(images\) is one of train \(n01, n02\): give both the same classes",
        ),
    ],
)
def test_a_val_without_a_class_of_train_ends_the_job(
    tmp_path: Path, folders: tuple[str, ...], words: str
) -> None:
    dataset = opened(filled(tmp_path, *folders))
    with pytest.raises(DataError, match=words):
        require_shared_classes(dataset.source("train"), dataset.source("val"), dataset.val_from)


def test_classes_that_differ_in_case_only_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = opened(filled(tmp_path, "train/Cat", "train/dog", "val/cat", "val/dog"))
    with caplog.at_level(logging.WARNING):
        require_shared_classes(dataset.source("train"), dataset.source("val"), dataset.val_from)
    assert "classes differ in case only: Cat and cat" in caplog.text


def test_boxes_of_an_annotation_tool_are_no_classes(tmp_path: Path) -> None:
    root = filled(tmp_path, "train", "valid")
    for name in ("_annotations.csv", "_annotations.coco.json"):
        (root / "train" / name).write_text("filename,width,height,class,xmin,ymin,xmax,ymax\n")
        assert f"holds boxes (train/{name})" in refusal(root)
        (root / "train" / name).unlink()


def test_labels_in_a_table_of_each_split_are_read(tmp_path: Path) -> None:
    root = filled(tmp_path, "train", "valid")
    for split in ("train", "valid"):
        rows = [f"{i}.jpg,{i % 2},{int(i > 9)}" for i in range(20)]
        table(root / split / "_classes.csv", rows, "filename, cat, dog")
    assert "set data.table.labels=[COLUMN]" in refusal(root)
    data: dict[str, Any] = {"labels": ["cat", "dog"], "kind": "labels"}
    dataset = opened(root, table=data)
    assert counts(dataset) == {"train": 20, "val": 20}
    assert dataset.source("val").labels[11].tolist() == [1, 1]
