"""Masks are found in the folders that people keep them in, or the message names what is there."""

import logging
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from entry_point.data.errors import DataError
from entry_point.data.sources.folder import visible_entries
from entry_point.data.sources.mask_folders import MaskPairs, list_pairs, looks_like_masks


def write(root: Path, *files: str) -> Path:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return root


def pairs(images: str, masks: str, names: Iterable[str] = ("0", "a/1", "a/2")) -> list[str]:
    """Files of a folder of images and of one of masks; `*` is the name."""
    return [pattern.replace("*", name) for name in names for pattern in (images, masks)]


def found(root: Path) -> MaskPairs:
    assert looks_like_masks(root)
    listed = list_pairs(root)
    assert listed is not None
    assert len(listed.images) == len(listed.masks) == len(listed.words)
    for file in (*listed.images, *listed.masks):
        assert (root / file).is_file()
    return listed


def refusal(root: Path) -> str:
    with pytest.raises(DataError) as error:
        list_pairs(root)
    message = str(error.value)
    assert "\n" not in message and len(message) < 700 and str(root) in message
    return message.replace(f"{root}/", "")


@pytest.mark.parametrize("train", ["train", "Training"])
@pytest.mark.parametrize("val", ["val", "valid", "validation", "dev", "VAL"])
def test_split_folders_hold_images_and_masks(tmp_path: Path, train: str, val: str) -> None:
    for split in (train, val, "test"):
        write(tmp_path, *pairs(f"{split}/images/*.jpg", f"{split}/masks/*.png"))
    listed = found(tmp_path)
    assert sorted({*listed.words}) == sorted({train.lower(), val.lower(), "test"})
    start = listed.words.index("test")
    assert listed.images[start : start + 3] == [f"test/images/{n}.jpg" for n in ("0", "a/1", "a/2")]
    assert listed.masks[start : start + 3] == [f"test/masks/{n}.png" for n in ("0", "a/1", "a/2")]


@pytest.mark.parametrize("images", ["images", "imgs", "img", "image", "img_dir", "Images"])
@pytest.mark.parametrize("masks", ["masks", "mask", "labels", "annotations", "ann_dir", "Masks"])
def test_folders_of_images_and_masks_have_usual_names(
    tmp_path: Path, images: str, masks: str
) -> None:
    flat = write(tmp_path / "flat", *pairs(f"{images}/*.jpg", f"{masks}/*.png"))
    listed = found(flat)
    assert listed.words == ["", "", ""]
    assert listed.masks == [f"{masks}/0.png", f"{masks}/a/1.png", f"{masks}/a/2.png"]
    assert listed.what == f"images with masks ({images} and {masks})"
    splits = tmp_path / "splits"
    for split in ("train", "val"):
        write(splits, *pairs(f"{images}/{split}/*.jpg", f"{masks}/{split}/*.png"))
    listed = found(splits)
    assert listed.words == ["train"] * 3 + ["val"] * 3
    assert listed.images[3:5] == [f"{images}/val/0.jpg", f"{images}/val/a/1.jpg"]
    inside = write(tmp_path / "in", *pairs(f"train/{images}/*.jpg", f"train/{masks}/*.png"))
    assert found(inside).words == ["train"] * 3


def test_pascal_voc_has_the_images_of_its_lists(tmp_path: Path) -> None:
    names = [f"2007_{i:06}" for i in range(6)]
    write(tmp_path, *(f"JPEGImages/{name}.jpg" for name in [*names, "2008_1"]))
    write(tmp_path, *(f"SegmentationClass/{name}.png" for name in names))
    lists = tmp_path / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("".join(f"{name}\n" for name in names[:4]))
    (lists / "val.txt").write_text(f"{names[4]} \r\n\r\n{names[5]}")
    (lists / "trainval.txt").write_text("\n".join(names))
    listed = found(tmp_path)
    assert listed.what == "images with masks (Pascal VOC)"
    assert listed.words == ["train"] * 4 + ["val"] * 2
    assert listed.images == [f"JPEGImages/{name}.jpg" for name in names]
    assert listed.masks == [f"SegmentationClass/{name}.png" for name in names]

    (lists / "train.txt").unlink()
    (lists / "val.txt").unlink()
    assert found(tmp_path).words == [""] * 6

    (lists / "val.txt").write_text(names[0])
    (lists / "train.txt").write_text("\n".join(names))
    assert f"lists JPEGImages/{names[0]}.jpg twice" in refusal(tmp_path)
    (lists / "val.txt").write_text(f"{names[0]}\n2009_1\n")
    assert "val.txt, line 2: JPEGImages has no image 2009_1" in refusal(tmp_path)


def test_cityscapes_has_masks_of_the_numbers_that_are_trained_on(tmp_path: Path) -> None:
    names = [("train", "aachen/aachen_000000_000019"), ("val", "ulm/ulm_000001_000019")]
    for split, name in names:
        write(tmp_path, f"leftImg8bit/{split}/{name}_leftImg8bit.png")
        kinds = ("color.png", "instanceIds.png", "labelIds.png", "polygons.json")
        write(tmp_path, *(f"gtFine/{split}/{name}_gtFine_{kind}" for kind in kinds))
    listed = found(tmp_path)
    assert listed.words == ["train", "val"]
    assert listed.images == [f"leftImg8bit/{s}/{name}_leftImg8bit.png" for s, name in names]
    assert listed.masks == [f"gtFine/{s}/{name}_gtFine_labelIds.png" for s, name in names]

    write(tmp_path, f"gtFine/train/{names[0][1]}_gtFine_labelTrainIds.png")
    assert f"gtFine/val/{names[1][1]}_gtFine_labelTrainIds.png is missing" in refusal(tmp_path)
    write(tmp_path, f"gtFine/val/{names[1][1]}_gtFine_labelTrainIds.png")
    expected = [f"gtFine/{s}/{name}_gtFine_labelTrainIds.png" for s, name in names]
    assert found(tmp_path).masks == expected


def test_only_cityscapes_has_names_of_photos_that_masks_lack(tmp_path: Path) -> None:
    files = pairs("train/images/*_leftImg8bit.png", "train/masks/*_leftImg8bit.png")
    assert found(write(tmp_path, *files)).masks[0] == "train/masks/0_leftImg8bit.png"


ENDINGS = (".PNG", ".Png", "_mask.png", "_mask.PNG", "-mask.png", "_seg.png", "_label.png")


@pytest.mark.parametrize("ending", [*ENDINGS, "_labels.png", "_gt.png"])
def test_masks_end_alike(tmp_path: Path, ending: str) -> None:
    listed = found(write(tmp_path, *pairs("train/images/*.JPG", f"train/masks/*{ending}")))
    assert listed.masks == [f"train/masks/{name}{ending}" for name in ("0", "a/1", "a/2")]
    if ending.lower() != ".png":
        assert listed.what.endswith(f"*{ending.lower()}")


def test_the_ending_is_that_of_most_masks_and_not_chosen_per_image(tmp_path: Path) -> None:
    write(tmp_path, *pairs("images/*.jpg", "masks/*_mask.png"), "images/1.jpg", "masks/1.png")
    message = refusal(tmp_path)
    assert "masks/1_mask.png is missing: each image needs a mask" in message
    assert "(1 of 4 have none); masks/1.png is there" in message


def test_the_usual_suffix_counts_where_both_are_there(tmp_path: Path) -> None:
    write(tmp_path, *pairs("images/*.jpg", "masks/*.png"), "masks/0.PNG")
    assert found(tmp_path).masks[0] == "masks/0.png"


@pytest.mark.parametrize(
    "there",
    ["5.tif", "5.jpg", "5.gif", "mask_5.png", "5_segmentation.png", "5-Mask.png", "b/5.png"],
)
def test_the_file_that_is_there_instead_of_a_mask_is_named(tmp_path: Path, there: str) -> None:
    write(tmp_path, "train/images/5.jpg", f"train/masks/{there}", "train/masks/15_5a.png")
    message = refusal(tmp_path)
    assert message.startswith("train/masks/5.png is missing: each image needs a mask")
    mend = "rename" if there.endswith(".png") else "convert"
    assert f"; train/masks/{there} is there: {mend} it; " in message
    assert "path,mask,split" in message


@pytest.mark.parametrize(
    ("image", "there"), [("IMG_1.jpg", "img_1.png"), ("caf\u00e9.jpg", "cafe\u0301.png")]
)
def test_a_mask_whose_name_differs_in_case_or_unicode_form_is_named(
    tmp_path: Path, image: str, there: str
) -> None:
    write(tmp_path, f"images/{image}", f"masks/{there}")
    assert f"; masks/{there} is there: rename it; " in refusal(tmp_path)


def test_nothing_is_named_where_nothing_is_alike(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, "images/5.jpg", "masks/15.png", "masks/55.png"))
    assert "masks/5.png is missing" in message and "is there" not in message


def test_a_test_set_without_masks_is_left_out_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for split in ("train", "val"):
        write(tmp_path, *pairs(f"{split}/images/*.jpg", f"{split}/masks/*.png"))
    write(tmp_path, "test/images/7.jpg", "test/images/8.jpg")
    with caplog.at_level(logging.WARNING):
        assert {*found(tmp_path).words} == {"train", "val"}
    assert (
        "test/masks/7.png is missing: no image of test has a mask; left out: 2 images"
        in caplog.text
    )
    write(tmp_path, "test/masks/8.png")
    assert "test/masks/7.png is missing: each image needs a mask" in refusal(tmp_path)


def test_splits_to_train_on_need_all_masks_and_images(tmp_path: Path) -> None:
    write(tmp_path, *pairs("train/images/*.jpg", "train/masks/*.png"), "val/images/7.jpg")
    assert "val/masks/7.png is missing" in refusal(tmp_path)
    (tmp_path / "val/images/7.jpg").unlink()
    assert "val/images holds no images; they end in .jpg" in refusal(tmp_path)


def test_two_images_of_one_mask_are_refused(tmp_path: Path) -> None:
    write(tmp_path, *pairs("images/*.jpg", "masks/*.png"), "images/0.png")
    assert "masks/0.png belongs to two images, images/0.jpg and images/0.png" in refusal(tmp_path)


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
    assert not looks_like_masks(tmp_path) and list_pairs(tmp_path) is None
    assert not looks_like_masks(tmp_path / "missing")


def test_looking_lists_a_hundred_entries_of_a_folder_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, *(f"{kind}/{i}.png" for kind in ("images", "masks") for i in range(300)))
    seen = list[str]()
    from entry_point.data.sources import mask_folders

    def counted(folder: Path, most: int | None) -> list[os.DirEntry[str]]:
        entries = visible_entries(folder, most)
        seen.extend(entry.name for entry in entries)
        return entries

    monkeypatch.setattr(mask_folders, "visible_entries", counted)
    assert looks_like_masks(tmp_path) and len(seen) == 2 + 100


def test_hidden_files_are_neither_images_nor_masks(tmp_path: Path) -> None:
    write(tmp_path, *pairs("images/*.jpg", "masks/*.png"), "images/._0.jpg", ".git/0.jpg")
    assert len(found(tmp_path).images) == 3
