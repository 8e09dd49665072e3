"""Masks are found in the folders that people keep them in, or the line names what is missing."""

import logging
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from entry_point.data.sources.folder import Tree
from entry_point.data.sources.mask_folders import looks_like_masks
from tests.entry_point.data.sources.small_datasets import opened, refusal, write

NAMES = ("0", "a/1", "a/2")
Pairs = dict[str, list[tuple[str, str]]]
"""Images and their masks, by split; "all" where nothing tells splits."""


def pairs(images: str, masks: str, names: Iterable[str] = NAMES) -> list[tuple[str, str]]:
    """Paths of images and of their masks; `*` is the name."""
    return [(images.replace("*", name), masks.replace("*", name)) for name in names]


def write_pairs(root: Path, splits: Pairs) -> Path:
    return write(root, *(file for split in splits.values() for pair in split for file in pair))


def found(root: Path) -> Pairs:
    """What opening the folder finds if nothing names its format."""
    (root / "classes.txt").write_text("ground\ndisc\nsquare\n")
    dataset = opened(root, for_training=False)
    assert dataset.data.format == "masks"
    splits: Pairs = {}
    for split in dataset.splits:
        source: Any = dataset.source(split)
        files = [(Path(source.path(i)), Path(source.mask_file(i))) for i in range(len(source))]
        assert all(file.is_file() for pair in files for file in pair)
        splits[split] = [(str(a.relative_to(root)), str(b.relative_to(root))) for a, b in files]
    return splits


def refused(root: Path) -> str:
    message = refusal(root, for_training=False)
    assert len(message) < 900 and str(root) in message
    return message.replace(f"{root}/", "")


def of_splits(images: str, masks: str, train: str = "train", val: str = "val") -> Pairs:
    folders = {"train": train, "val": val, "test": "test"}
    return {split: pairs(images.format(f), masks.format(f)) for split, f in folders.items()}


APART = ("{}/images/*.jpg", "{}/masks/*.png")
BESIDE = ("{}/*.jpg", "{}/*_mask.png")
MARKED = ("{}/images/*.jpg", "{}/masks/*_mask.png")
BELOW = ("img_dir/{}/*.jpg", "ann_dir/{}/*.png")
IMAGES = ("imgs", "img", "image", "img_dir", "Images")
MASKS = ("mask", "labels", "annotations", "ann_dir", "Masks")
ENDINGS = (".PNG", ".Png", "_mask.png", "_mask.PNG", "-mask.png", "_seg.png", "_label.png")
LAYOUTS = [
    *(
        of_splits(*patterns, train, val)
        for patterns in (APART, BESIDE, BELOW)
        for train in ("train", "Training")
        for val in ("val", "valid", "validation", "dev", "eval", "VAL")
    ),
    *(of_splits(*each, "train2017", "val2017") for each in (APART, BELOW)),
    *(of_splits(f"{{}}/{images}/*.jpg", "{}/masks/*.png") for images in IMAGES),
    *(of_splits("images/{}/*.webp", f"{masks}/{{}}/*.png") for masks in MASKS),
    *({"all": pairs(f"{i}/*.jpg", f"{m}/*.png")} for i, m in zip(IMAGES, MASKS, strict=True)),
    *(of_splits(APART[0], f"{{}}/masks/*{end}") for end in (*ENDINGS, "_labels.png", "_gt.png")),
    of_splits("{}/*.jpg", "{}/*-mask.png"),
    {"all": pairs("*.png", "*_mask.png")},
    {
        "train": pairs("train/Images/*.jpg", "train/Masks/*.png"),
        "val": pairs("val/imgs/*.jpg", "val/labels/*.png"),
    },
    # Only Cityscapes has names of photos that masks lack.
    of_splits("{}/images/*_leftImg8bit.png", "{}/masks/*_leftImg8bit.png"),
]


@pytest.mark.parametrize("splits", LAYOUTS)
def test_masks_are_found(tmp_path: Path, splits: Pairs) -> None:
    assert found(write_pairs(tmp_path, splits)) == splits


def test_the_log_names_folders_and_ending(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    found(write_pairs(tmp_path, of_splits("{}/imgs/*.jpg", "{}/labels/*_gt.PNG")))
    assert "images with masks (test/imgs and test/labels) *_gt.png: 3 images" in caplog.text


def test_pascal_voc_has_the_images_of_its_lists(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    names = [f"2007_{i:06}" for i in range(6)]
    every = pairs("JPEGImages/*.jpg", "SegmentationClass/*.png", names)
    write_pairs(tmp_path, {"": every})
    assert found(tmp_path) == {"all": every}

    lists = tmp_path / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    (lists / "trainval.txt").write_text("\n".join(names[1:]))
    assert found(tmp_path) == {"all": every[1:]}
    (lists / "train.txt").write_text("".join(f"{name}\n" for name in names[:3]))
    (lists / "val.txt").write_text(f"{names[4]} \r\n\r\n{names[5]}")
    assert found(tmp_path) == {"train": every[:3], "val": every[4:]}
    assert "(Pascal VOC): 3 images for train, 2 for val (by the lists)" in caplog.text

    for line in ("2009_1", names[0]):  # the second is one of train
        (lists / "val.txt").write_text(f"{names[5]}\n{line}\n")
        message = f"val.txt, line 2: JPEGImages has no image {line}, or it is listed twice"
        assert message in refused(tmp_path)


def test_cityscapes_has_masks_of_the_numbers_that_are_trained_on(tmp_path: Path) -> None:
    kinds = ("color.png", "instanceIds.png", "labelIds.png", "polygons.json")

    def city(kind: str, split: str, name: str) -> list[tuple[str, str]]:
        folders = (f"leftImg8bit/{split}/*_leftImg8bit.png", f"gtFine/{split}/*_gtFine_{kind}")
        return pairs(*folders, [name])

    named = (("train", "aachen/aachen_000000_000019"), ("val", "ulm/ulm_000001_000019"))
    for kind in kinds:
        write_pairs(tmp_path, {split: city(kind, split, name) for split, name in named})
    assert found(tmp_path) == {split: city("labelIds.png", split, name) for split, name in named}

    trained = {split: city("labelTrainIds.png", split, name) for split, name in named}
    write_pairs(tmp_path, {"train": trained["train"]})
    assert f"{trained['val'][0][1]} is missing" in refused(tmp_path)
    assert found(write_pairs(tmp_path, trained)) == trained


REFUSED = [
    # A layout that is read, what lies there in addition, and what the line says then.
    (APART, ["val/images/7.jpg"], "val/masks/7.png is missing: each image needs a mask, a PNG ("),
    (BELOW, ["img_dir/val/7.jpg"], "ann_dir/val/7.png is missing"),
    (BESIDE, ["val/7.jpg"], "val/7_mask.png is missing"),
    (APART, ["test/images/7.jpg"], "test/masks/7.png is missing"),
    (APART, ["dev/"], "dev/images holds no images; they end in .jpg, "),
    (BESIDE, ["dev/"], "dev holds no images; they end in .jpg, "),
    (APART, ["val/images/0.png"], "val/masks/0.png belongs to two images, val/images/0.jpg and"),
    # The ending is not chosen per image.
    (MARKED, ["val/images/7.jpg", "val/masks/7.png"], "/7_mask.png is missing: each image needs a"),
    (APART, ["val/images/5.jpg", "val/masks/5.tif"], "; those of other formats must be"),
    (APART, ["val/images/IMG_1.jpg", "val/masks/img_1.png"], " holds 0.png, a, img_1.png; masks"),
    (APART, ["val/images/b/5.jpg", "val/masks/5.png"], " holds 0.png, 5.png, a; masks of other"),
]


@pytest.mark.parametrize(("patterns", "more", "message"), REFUSED)
def test_what_cannot_be_read_is_named_with_what_lies_there(
    tmp_path: Path, patterns: tuple[str, str], more: list[str], message: str
) -> None:
    assert found(write_pairs(tmp_path, of_splits(*patterns)))
    for name in more:
        if name.endswith("/"):
            (tmp_path / name).mkdir()
        else:
            write(tmp_path, name)
    assert message in refused(tmp_path)


def test_images_of_no_split_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    splits = of_splits(*BELOW)
    write_pairs(tmp_path, {**splits, "": pairs("img_dir/new/*.jpg", "ann_dir/new/*.png")})
    assert found(tmp_path) == splits
    assert f"(by the folders); not used: {len(NAMES)} of no split" in caplog.text


def test_a_test_set_without_masks_is_left_out_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    splits = of_splits(*APART)
    del splits["test"]
    write(write_pairs(tmp_path, splits), "test/images/7.jpg", "test/images/8.jpg")
    assert found(tmp_path) == splits
    left_out = "test/masks/7.png is missing: no image of test has a mask; left out: 2 images"
    assert left_out in caplog.text
    shutil.rmtree(tmp_path / "test/images")
    assert found(tmp_path) == splits
    assert "test/images holds no images" in caplog.text


@pytest.mark.parametrize(
    "files",
    [
        ("train/cat/0.jpg", "train/dog/0.jpg", "val/cat/0.jpg"),
        ("images/train/0.jpg", "labels/train/0.txt"),  # YOLO
        ("train/images/0.jpg", "train/labels/0.txt", "val/images/0.jpg", "val/labels/0.txt"),
        ("images/0.jpg", "annotations/instances_train.json"),  # COCO
        ("masks/0.png", "faces/0.png"),
        ("images/0.jpg", "labels.csv"),
        ("0.jpg",),
        (),
    ],
)
def test_other_datasets_are_not_taken_for_masks(tmp_path: Path, files: tuple[str, ...]) -> None:
    write(tmp_path, *files)
    for root in (tmp_path, tmp_path / "missing"):
        assert not looks_like_masks(Tree(root))
    message = refusal(tmp_path, for_training=False, format="masks")
    assert "holds no images with masks: it must hold train/images" in message


def test_hidden_files_and_a_second_suffix_do_not_count(tmp_path: Path) -> None:
    splits = {"all": pairs("images/*.jpg", "masks/*.png")}
    write(write_pairs(tmp_path, splits), "images/._0.jpg", ".git/0.jpg", "masks/0.PNG")
    assert found(tmp_path) == splits


def test_masks_are_no_class_folders(tmp_path: Path) -> None:
    write_pairs(tmp_path, of_splits(*BESIDE))
    assert "masks, not classes" in refusal(tmp_path, format="folder")
