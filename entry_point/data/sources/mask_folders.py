"""Finds images and their masks in the folders that people keep them in.

    train/images/**, train/masks/**   the same for val and test
    images/**, masks/**               or images/train/**, masks/train/**
    Pascal VOC                        JPEGImages, SegmentationClass, ImageSets/Segmentation/*.txt
    Cityscapes                        leftImg8bit/train/<city>/**, gtFine/train/<city>/**
    train/1.jpg, train/1_mask.png     beside each other; the same for val and test, or only 1.jpg

The mask of `images/a/1.jpg` is `masks/a/1.png`, or `masks/a/1_mask.png` and the like; all masks of
a dataset end alike.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from entry_point.data.errors import DataError
from entry_point.data.sources.file_bytes import read_bytes
from entry_point.data.sources.folder import (
    IMAGE_SUFFIXES,
    folded,
    is_folder,
    is_image,
    visible_entries,
    visible_files,
    warn_of_skipped,
)
from entry_point.job.program import counted, printable

log = logging.getLogger(__name__)

LAYOUTS = (
    "train/images and train/masks, or images/train and masks/train (the same for val), or those of "
    "Pascal VOC or Cityscapes"
)
"""For the message about a folder that has none of them."""
_IMAGES = ("images", "imgs", "img", "image", "img_dir", "jpegimages")
_MASKS = ("masks", "mask", "labels", "annotations", "ann_dir", "segmentationclass")
_SPLITS = ("train", "training", "val", "valid", "validation", "dev", "test", "testing")
_TEST = ("test", "testing")
_ENDINGS = ("", "_mask", "-mask", "_seg", "_label", "_labels", "_gt")
"""What the name of a mask may have after that of its image."""
_BESIDE = ("_mask.png", "-mask.png")
"""What the names of masks end in that lie beside their images."""
_VOC_LISTS = "ImageSets/Segmentation"
_PHOTO, _TRAIN_IDS, _IDS = "_leftImg8bit", "_gtFine_labelTrainIds", "_gtFine_labelIds"
"""What names end in in Cityscapes."""
_LOOKED_AT = 100
"""Entries of a folder below the root that are listed to find out what it holds."""


class MaskPairs(NamedTuple):
    """Images and the mask of each, by the folder of their split and by path."""

    images: list[str]
    """Paths below the root."""
    masks: list[str]
    """Paths below the root."""
    words: list[str]
    """The folder or list, in lower case, that says the split of each pair; "" if nothing does."""
    what: str
    """For the log, as in "images with masks (Pascal VOC)"."""


class _Place(NamedTuple):
    """A folder of images and that of their masks, below the root."""

    images: str
    masks: str
    word: str = ""
    """The split of all of its images; "" if folders below it, or lists, tell."""
    lists: Sequence[Path] = ()
    """The files that name the images that count; none if all do."""
    ending: str = ""
    """What all images end in before the suffix, and masks do not have."""


class _Layout(NamedTuple):
    name: str
    places: Sequence[_Place]


class _Image(NamedTuple):
    path: str
    mask: str
    """The path of its mask without what all masks end in."""
    word: str


def looks_like_masks(root: Path) -> bool:
    """Returns whether `list_pairs` finds a layout. Lists `root` and a few entries below."""
    return _find_layout(root) is not None


def list_pairs(root: Path) -> MaskPairs | None:
    """Returns the pairs in a folder, or None if it has none of the LAYOUTS.

    A test set in which no image has a mask is left out, and said. Raises DataError for any other
    image without a mask, and for a mask of two images.
    """
    layout = _find_layout(root)
    if layout is None:
        return None
    images = [image for place in layout.places for image in _list_images(root, place)]
    folders = dict.fromkeys(place.masks for place in layout.places)
    beside = {place.masks for place in layout.places if place.masks == place.images}
    files = [
        _join(folder, name)
        for folder in folders
        for name in _files(root / folder)
        if folder not in beside or _is_mask(name)
    ]
    # 1.PNG is sorted before 1.png, which counts if both are there.
    masks = {f"{file[:-4]}.png": file for file in files if file.lower().endswith(".png")}
    ending = _choose_ending(layout, images, masks)
    images = _require_masks(root, images, ending, masks, files)
    owners = dict[str, str]()
    for image in images:
        mask = masks[f"{image.mask}{ending}.png"]
        if mask in owners:
            first, second = printable(owners[mask]), printable(image.path)
            if first == second:
                lists = root / _VOC_LISTS
                raise DataError(f"{lists} lists {first} twice: an image belongs to one split")
            both = f"{first} and {second}"
            raise DataError(
                f"{printable(str(root / mask))} belongs to two images, {both}: rename one"
            )
        owners[mask] = image.path
    what = f"images with masks ({layout.name})" + (f" *{ending}.png" if ending else "")
    return MaskPairs([*owners.values()], [*owners], [image.word for image in images], what)


def _find_layout(root: Path) -> _Layout | None:
    if not root.is_dir():
        return None
    folders, _ = _look(root, most=None)
    if "leftimg8bit" in folders and "gtfine" in folders:
        place = _Place(folders["leftimg8bit"], folders["gtfine"], ending=_PHOTO)
        return _Layout("Cityscapes", [place])
    if "jpegimages" in folders and "segmentationclass" in folders:
        lists = sorted((root / _VOC_LISTS).glob("*.txt"))
        lists = [file for file in lists if file.stem.lower() in _SPLITS] or lists
        place = _Place(folders["jpegimages"], folders["segmentationclass"], lists=lists)
        return _Layout("Pascal VOC", [place])
    pairs = {
        name: _find_pair(root / name, _look(root / name)[0])
        for word, name in folders.items()
        if word in _SPLITS
    }
    if usual := next(filter(None, pairs.values()), None):
        places = [
            _Place(f"{split}/{images}", f"{split}/{masks}", split.lower())
            for split, pair in pairs.items()
            for images, masks in [pair or usual]
        ]
        return _Layout(f"{places[0].images} and {places[0].masks}", places)
    if pair := _find_pair(root, folders):
        return _Layout(" and ".join(pair), [_Place(*pair)])
    tops = [name for name in pairs if _holds_both(root / name)]
    if tops or _holds_both(root):
        return _Layout("beside each other", [_Place(top, top, top.lower()) for top in tops or [""]])
    return None


def _holds_both(folder: Path) -> bool:
    """Returns whether masks lie beside their images, by the first names."""
    names = [entry.name for entry in visible_entries(folder, _LOOKED_AT)]
    masks = [name for name in names if _is_mask(name)]
    return bool(masks) and any(is_image(name) for name in {*names} - {*masks})


def _find_pair(parent: Path, folders: dict[str, str]) -> tuple[str, str] | None:
    """Returns the folders of images and masks by their usual names.

    Labels of other kinds lie in folders of the same names: only masks are images.
    """
    images = next((folders[name] for name in _IMAGES if name in folders), None)
    masks = (folders[name] for name in _MASKS if name in folders)
    found = next((name for name in masks if images and _holds_images(parent / name)), None)
    return (images, found) if images and found else None


def _holds_images(folder: Path, depth: int = 2) -> bool:
    folders, has_image = _look(folder)
    below = islice(folders.values(), 2 if depth else 0)
    return has_image or any(_holds_images(folder / name, depth - 1) for name in below)


def _look(folder: Path, most: int | None = _LOOKED_AT) -> tuple[dict[str, str], bool]:
    """Returns the visible folders among the first entries, by names in lower case, and whether an
    image is among them."""
    entries = visible_entries(folder, most)
    folders = {entry.name.lower(): entry.name for entry in entries if is_folder(entry)}
    return folders, any(is_image(entry.name) for entry in entries if not is_folder(entry))


def _is_mask(name: str) -> bool:
    return name.lower().endswith(_BESIDE)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _files(folder: Path) -> Iterable[str]:
    return visible_files(folder) if folder.is_dir() else ()


def _list_images(root: Path, place: _Place) -> Iterator[_Image]:
    """Yields the images of a place. Raises DataError if there are none, except in a test set."""
    files = [*_files(root / place.images)]
    names = list(filter(is_image, files))
    warn_of_skipped(root / place.images, [file for file in files if not is_image(file)])
    if place.images == place.masks:
        names = [name for name in names if not _is_mask(name)]
    if not names:
        none = f"{root / place.images} holds no images; they end in {', '.join(IMAGE_SUFFIXES)}"
        if place.word not in _TEST:
            raise DataError(none)
        log.warning("%s: not used", none)
    if place.lists:
        yield from _listed_images(root, place, names)
        return
    for name in names:
        stem = name[: name.rindex(".")].removesuffix(place.ending)
        folders = name.lower().split("/")[:-1]
        word = place.word or next((folder for folder in folders if folder in _SPLITS), "")
        yield _Image(_join(place.images, name), _join(place.masks, stem), word)


def _listed_images(root: Path, place: _Place, names: Sequence[str]) -> Iterator[_Image]:
    """Yields the images that lists name without suffixes."""
    found = {name[: name.rindex(".")]: name for name in names}
    for file in place.lists:
        try:
            lines = read_bytes(str(file)).numpy().tobytes().decode("utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "is not UTF-8"
            raise DataError(f"{file}: {reason}; it must name images, one per line") from error
        word = file.stem.lower()
        for number, stem in enumerate(map(str.strip, lines), 1):
            if stem and stem not in found:
                lacks = f"{root / place.images} has no image {printable(stem)}"
                raise DataError(f"{file}, line {number}: {lacks}; remove the line or add the image")
            if stem:
                path = f"{place.images}/{found[stem]}"
                yield _Image(path, f"{place.masks}/{stem}", word if word in _SPLITS else "")


def _choose_ending(layout: _Layout, images: Sequence[_Image], masks: Collection[str]) -> str:
    """Returns what masks end in before .png: the first that fits all images, else the one that fits
    most.

    In Cityscapes, the numbers of the classes that are trained on, if there are any.
    """
    if layout.name == "Cityscapes":
        has_train_ids = any(mask.endswith(f"{_TRAIN_IDS}.png") for mask in masks)
        return _TRAIN_IDS if has_train_ids else _IDS
    fitting = dict[str, int]()
    for ending in _ENDINGS:
        fitting[ending] = sum(f"{image.mask}{ending}.png" in masks for image in images)
        if fitting[ending] == len(images):
            return ending
    return max(fitting, key=fitting.__getitem__)


def _require_masks(
    root: Path, images: list[_Image], ending: str, masks: Collection[str], files: Sequence[str]
) -> list[_Image]:
    """Returns the images without those of a test set that has no masks. Raises DataError."""
    missing = [image for image in images if f"{image.mask}{ending}.png" not in masks]
    if not missing:
        return images
    counts, lost = (Counter(image.word for image in each) for each in (images, missing))
    unlabeled = {word for word in _TEST if 0 < lost[word] == counts[word] < len(images)}
    lacking = next((image for image in missing if image.word not in unlabeled), missing[0])
    path = printable(f"{root / lacking.mask}{ending}.png")
    if lacking.word in unlabeled:
        line = "%s is missing: no image of %s has a mask; left out: %s"
        log.warning(line, path, lacking.word, counted(len(missing), "image"))
        return [image for image in images if image.word not in unlabeled]
    similar = _similar(lacking.mask, files)
    mend = "rename" if similar.lower().endswith(".png") else "convert"
    there = f"; {printable(similar)} is there: {mend} it" if similar else ""
    raise DataError(
        f"{path} is missing: each image needs a mask, a PNG ({len(missing)} of {len(images)} have "
        f"none){there}; masks of other names go into a table with the columns path,mask,split, "
        "beside classes.txt: data.root=TABLE.csv"
    )


def _similar(mask: str, files: Sequence[str]) -> str:
    """Returns the file that is perhaps the mask, "" if none looks like it."""
    wanted = folded(mask)
    stem = wanted.rpartition("/")[2]
    as_a_word = re.compile(rf"(?<![^\W_]){re.escape(stem)}(?![^\W_])")

    def distance(file: str) -> int:
        path = folded(file).rpartition(".")[0]
        name = path.rpartition("/")[2]
        is_word = as_a_word.search(name) is not None
        alike = (path == wanted, name == stem, is_word and path.startswith(wanted), is_word)
        return alike.index(True) if any(alike) else len(alike)

    found = min(files, key=distance, default="")
    return found if found and distance(found) < 4 else ""
