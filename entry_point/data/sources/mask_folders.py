"""Finds images and their masks by patterns of their paths.

    train/images/**, train/masks/**   the same for val and test
    images/**, masks/**               or images/train/**, masks/train/**
    Pascal VOC                        JPEGImages, SegmentationClass, ImageSets/Segmentation/*.txt
    Cityscapes                        leftImg8bit/train/<city>/**, gtFine/train/<city>/**
    train/1.jpg, train/1_mask.png     beside each other; the same for val and test, or only 1.jpg

The mask of `images/a/1.jpg` is `masks/a/1.png`, or `masks/a/1_mask.png` and the like; all masks of
a dataset have the same ending.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from posixpath import join
from typing import NamedTuple

from entry_point.data.errors import DataError
from entry_point.data.sources.file_bytes import read_bytes
from entry_point.data.sources.folder import (
    Tree,
    is_image,
    warn_of_skipped,
)
from entry_point.data.sources.rows import IMAGE_SUFFIXES
from entry_point.data.sources.splits import split_named, splits_named
from entry_point.job.text import counted, printable

log = logging.getLogger(__name__)

LAYOUTS = (
    "train/images and train/masks, or images/train and masks/train (the same for val), or those of "
    "Pascal VOC or Cityscapes"
)
"""The layouts, for the error about a folder that has none of them."""
_VOC_LISTS = "ImageSets/Segmentation"


class _Pattern(NamedTuple):
    """Images are FOLDER/**/NAME with a suffix; masks are FOLDER/**/NAME with an ending and .png."""

    images: Sequence[str]
    """Possible names of the folder in lower case, by priority; empty for the folder above."""
    masks: Sequence[str]
    endings: Sequence[str] = ("", "_mask", "-mask", "_seg", "_label", "_labels", "_gt")
    photo: str = ""
    """The text after NAME in the name of an image."""
    name: str = ""


_CITYSCAPES = _Pattern(
    ["leftimg8bit"],
    ["gtfine"],
    endings=["_gtFine_labelTrainIds", "_gtFine_labelIds"],
    photo="_leftImg8bit",
    name="Cityscapes",
)
_VOC = _Pattern(["jpegimages"], ["segmentationclass"], name="Pascal VOC")
OF_PHOTOS = ("images", "imgs", "img", "image", "img_dir", *_VOC.images)
"""Names of folders of photos beside those of masks, in lower case."""
_APART = _Pattern(
    OF_PHOTOS,
    ["masks", "mask", "labels", "annotations", "ann_dir", *_VOC.masks],
)
_BESIDE = _Pattern([], [], endings=["_mask", "-mask"], name="beside each other")
_DATASETS = (_CITYSCAPES, _VOC)
"""Layouts whose folders are in the root and hold no other kind of labels."""


class MaskPair(NamedTuple):
    """An image and its mask, as paths below the root."""

    image: str
    mask: str
    split: str
    """Name of the split; "" if nothing tells it."""


class _Place(NamedTuple):
    """Folders below the root, each with a `/` at the end; "" is the root."""

    images: str
    masks: str
    split: str
    """Split of all images in the place; "" if folders below it, or lists, tell the splits."""


def looks_like_masks(tree: Tree) -> bool:
    """Returns whether `list_pairs` finds a layout. Lists the root and a few folders below."""
    return _find_layout(tree) is not None


def list_pairs(tree: Tree) -> tuple[str, list[MaskPair]] | None:
    """Returns the layout, as in "images with masks (Pascal VOC)", and the pairs, sorted by the
    folder of their split and by path; None for a folder that has none of the LAYOUTS.

    A test set without any mask is left out, with a line. Raises DataError for any other image
    without a mask, and for a mask of two images.
    """
    root, layout = tree.root, _find_layout(tree)
    if layout is None:
        return None
    pattern, places = layout
    name = pattern.name or f"{places[0].images[:-1]} and {places[0].masks[:-1]}"
    images = [image for place in places for image in _list_images(tree, pattern, place)]
    if pattern is _VOC and (lists := sorted((root / _VOC_LISTS).glob("*.txt"))):
        images = [*_of_lists(lists, root / places[0].images, images)]
    files = (f"{place.masks}{file}" for place in places for file in _files(tree, place.masks))
    # 1.PNG is sorted before 1.png, which is taken if both exist.
    masks = {f"{file[:-4]}.png": file for file in files if file.lower().endswith(".png")}
    ending = _choose_ending(pattern, images, masks)
    pairs, owners = list[MaskPair](), dict[str, str]()
    for image, stem, split in _with_masks(root, images, ending, masks):
        mask = masks[f"{stem}{ending}.png"]
        if (other := owners.setdefault(mask, image)) != image:
            shared = printable(f"{root / mask} belongs to two images, {other} and {image}")
            raise DataError(f"{shared}: rename one")
        pairs.append(MaskPair(image, mask, split))
    return f"images with masks ({name})" + (f" *{ending}.png" if ending else ""), pairs


def _find_layout(tree: Tree) -> tuple[_Pattern, list[_Place]] | None:
    """Returns the first pattern that matches the folders of splits, or else the root."""
    if not tree.root.is_dir():
        return None
    splits = splits_named(tree.at().folders)
    for pattern in (_CITYSCAPES, _VOC, _APART, _BESIDE):
        tops = [""] if pattern in _DATASETS else [*splits, ""]
        pairs = {top: pair for top in tops if (pair := _find_pair(pattern, tree.below(top)))}
        if pairs:
            first = next(iter(pairs))
            places = list[_Place]()
            for top in splits if first else [""]:
                # A split without these folders is reported when its images are listed.
                images, masks = (join(top, name, "") for name in pairs.get(top, pairs[first]))
                places.append(_Place(images, masks, splits.get(top, "")))
            return pattern, places
    return None


def _find_pair(pattern: _Pattern, tree: Tree) -> tuple[str, str] | None:
    """Returns the folders of images and of masks in the root."""
    names = tree.at()
    if pattern is _BESIDE:
        images = [name for name in names.files if is_image(name)]
        return ("", "") if 0 < sum(map(_is_mask, images)) < len(images) else None
    folders = {name.lower(): name for name in names.folders}
    photos = [folders[name] for name in pattern.images if name in folders]
    masks = (folders[name] for name in pattern.masks if name in folders)
    # Folders of these names may also hold labels of other kinds.
    holding = (
        name for name in masks if pattern in _DATASETS or tree.leads_to_images(name, 2, width=2)
    )
    first = next(holding, None) if photos else None
    return (photos[0], first) if first else None


def _is_mask(name: str) -> bool:
    """Returns whether a name is that of a mask beside its image."""
    return name.lower().endswith(tuple(f"{ending}.png" for ending in _BESIDE.endings))


def _files(tree: Tree, folder: str) -> list[str]:
    return [*tree.files(folder.rstrip("/"))] if (tree.root / folder).is_dir() else []


def _list_images(tree: Tree, pattern: _Pattern, place: _Place) -> Iterator[MaskPair]:
    """Yields the images of a place, with their masks, whose ending is added later.

    Raises DataError if there are none, except in a test set.
    """
    folder, files = tree.root / place.images, _files(tree, place.images)
    names = [name for name in files if is_image(name)]
    warn_of_skipped(folder, [name for name in files if not is_image(name)])
    if pattern is _BESIDE:
        names = [name for name in names if not _is_mask(name)]
    if not names:
        none = f"{folder} holds no images; they end in {', '.join(IMAGE_SUFFIXES)}"
        if place.split != "test":
            raise DataError(none)
        log.warning("%s: not used", none)
    called = splits_named({part for name in names for part in name.split("/")[:-1]})
    for name in names:
        stem = name[: name.rindex(".")].removesuffix(pattern.photo)
        split = place.split or next(filter(None, map(called.get, name.split("/")[:-1])), "")
        yield MaskPair(f"{place.images}{name}", f"{place.masks}{stem}", split)


def _of_lists(
    lists: Sequence[Path], folder: Path, images: Sequence[MaskPair]
) -> Iterator[MaskPair]:
    """Yields the images in the lists of splits, which name them without suffixes; those of all
    lists if no list is named as a split. Raises DataError."""
    named = {image.mask.partition("/")[2]: image for image in images}
    for file in [file for file in lists if split_named(file.stem)] or lists:
        for number, name in enumerate(read_lines(file, "name images, one per line"), 1):
            if name and name not in named:
                lacks = f"{folder} has no image {printable(name)}, or it is listed twice"
                raise DataError(f"{file}, line {number}: {lacks}; remove the line or add the image")
            if name:
                yield named.pop(name)._replace(split=split_named(file.stem) or "")


def read_lines(file: Path, content: str) -> list[str]:
    """Returns the lines of a text file, without blanks around them. Raises DataError, whose message
    asks for `content`."""
    try:
        text = read_bytes(file).numpy().tobytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8"
        raise DataError(f"{file}: {reason}; it must {content}") from error
    return [line.strip() for line in text.split("\n")]


def _choose_ending(pattern: _Pattern, images: Sequence[MaskPair], masks: Collection[str]) -> str:
    """Returns the ending of masks before .png: the first that fits all images, else the one that
    fits most.

    In Cityscapes, masks with the numbers of the training classes are preferred.
    """
    if pattern is _CITYSCAPES:
        trained, every = pattern.endings
        return trained if any(mask.endswith(f"{trained}.png") for mask in masks) else every
    fitting = dict[str, int]()
    for ending in pattern.endings:
        fitting[ending] = sum(f"{image.mask}{ending}.png" in masks for image in images)
        if fitting[ending] == len(images):
            break
    return max(fitting, key=fitting.__getitem__)


def _with_masks(
    root: Path, images: Sequence[MaskPair], ending: str, masks: Collection[str]
) -> Sequence[MaskPair]:
    """Returns the images, without those of a test set that has no masks. Raises DataError."""
    missing = [image for image in images if f"{image.mask}{ending}.png" not in masks]
    counts, lost = (Counter(image.split for image in part) for part in (images, missing))
    is_left_out = 0 < lost["test"] == counts["test"] < len(images)
    wrong = [image for image in missing if not (is_left_out and image.split == "test")]
    if wrong:
        from entry_point.data.sources.listed_paths import nearest_names  # it imports polars

        mask = f"{wrong[0].mask}{ending}.png"
        path, there = printable(str(root / mask)), nearest_names(str(root), mask)
        raise DataError(
            f"{path} is missing: each image needs a mask, a PNG ({len(missing)} of {len(images)} "
            f"have none); {there}; masks of other names go into a table with the columns "
            "path,mask,split, beside classes.txt: data.root=TABLE.csv; those of other formats must "
            "be saved as PNGs first"
        )
    if not is_left_out:
        return images
    path = printable(f"{root / missing[0].mask}{ending}.png")
    line = "%s is missing: no image of test has a mask; left out: %s"
    log.warning(line, path, counted(len(missing), "image"))
    return [image for image in images if image.split != "test"]
