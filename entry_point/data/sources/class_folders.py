"""Reads class folders: root/<split>/<class>/**, root/<class>/** or root/<class>/<split>/**.

A folder below the root is not always a class. It is one if folders at its level directly hold
images, or if the folder above it is named as a split. Other levels are skipped if only one reading
is possible; otherwise the error lists what was found, and what to type.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from entry_point.data.errors import DataError
from entry_point.data.sources.archives import refuse_archives
from entry_point.data.sources.dataset_description import (
    CLASS_NAME,
    is_class_name,
    is_description,
)
from entry_point.data.sources.folder import (
    Names,
    Tree,
    folder_of_each,
    is_photo,
    warn_of_skipped,
)
from entry_point.data.sources.mask_folders import OF_PHOTOS, looks_like_masks
from entry_point.data.sources.rows import IMAGE_SUFFIXES, Files, Labels, PathList, Rows, Words
from entry_point.data.sources.splits import split_named, splits_named
from entry_point.job.text import printable

log = logging.getLogger(__name__)

_LOOKED_AT = 10
"""Number of folders of a level that are opened to find out what they hold."""
_DEEPEST = 8
"""Most folders above the classes that hold only one folder each."""
_OF_IMAGES = (*OF_PHOTOS, "photos", "pictures")
"""Names of folders that are no classes but hold the images of all, alone or as images_1 and
images_2."""
_INSTEAD = (
    "put images into {root}/<class>/, or list them with their labels in a table "
    "(data.root=labels.csv)"
)


class Levels(NamedTuple):
    """The levels of folders in which the class folders are."""

    tops: dict[str, str]
    """By split, "" for none: the folder below the root whose folders are classes."""
    splits_inside: bool = False
    """Whether the folders in each class folder are splits."""


class _ClassFolder(NamedTuple):
    name: str
    top: int
    """Position of the folder above among the tops."""
    images: list[str]
    """Paths of the images from that folder."""
    inner: Collection[str]
    """Folders in it that lead to images, if it directly holds none."""
    is_class: bool | None
    """None if it is empty; False if it holds files but no photo."""

    @classmethod
    def walked(cls, above: Tree, top: int, name: str, skipped: list[str]) -> _ClassFolder:
        """List all images below; add other files to `skipped`."""
        files = [*above.files(name)]
        images = [file for file in files if file.lower().endswith(IMAGE_SUFFIXES)]
        others = sorted({*files} - {*images}) if len(images) < len(files) else []
        skipped += (f"{name}/{file}" for file in others)
        # A folder's own files come before those of its folders.
        deep = bool(images) and "/" in images[0]
        inner = {file.split("/")[0] for file in images} if deep else ()
        is_class = (bool(images) or any(map(is_photo, others))) if files else None
        return cls(name, top, [f"{name}/{file}" for file in images], inner, is_class)


def list_classes(tree: Tree, *_: object) -> Rows:
    """Returns the images in class folders, sorted by split, class and path. Raises DataError.

    The classes are the class folders of all splits, including empty ones, but not folders that hold
    only other files.
    """
    root = tree.root
    _refuse_masks(tree)
    levels = find_levels(tree)
    tops, found = [*levels.tops.values()], list[_ClassFolder]()
    for place, top in enumerate(tops):
        folders, skipped = tree.at(top).folders, [*tree.at(top).files]
        for name in folders:
            if not is_class_name(name):
                raise DataError(f"{root / top / name}: {CLASS_NAME}: rename it")
            found.append(_ClassFolder.walked(tree.below(top), place, name, skipped))
        warn_of_skipped(root / top, skipped)
    found = _without_other_tests(root, levels, found)
    classes = _require_classes(tree, tops, found)
    _refuse_photos_and_masks(root, found)
    number = {name: i for i, name in enumerate(classes)}
    held = [folder for folder in found if folder.images]
    names = [*chain.from_iterable(folder.images for folder in held)]
    counts = [len(folder.images) for folder in held]
    labels = np.repeat(np.array([number[folder.name] for folder in held], np.int64), counts)
    top_of = np.repeat(np.array([folder.top for folder in held], np.int8), counts)
    _log_layout(tree, levels)
    words = Words("the folders", list(levels.tops), top_of)
    if levels.splits_inside:
        words = _words_inside(names)
    paths, found_labels = PathList.of_names(names), Labels("class", classes, labels)
    return Rows("class folders", paths, Files(str(root), paths, tops, top_of), found_labels, words)


def count_classes(tree: Tree) -> int:
    """Returns the probable number of class folders in a folder.

    Raises DataError if it is ambiguous which they are.
    """
    tops = find_levels(tree).tops
    return len({name for top in tops.values() for name in tree.at(top).folders})


def _without_other_tests(
    root: Path, levels: Levels, found: list[_ClassFolder]
) -> list[_ClassFolder]:
    """Returns the folders without those of `test` if none of these is a class of another split: the
    images of `test` then have no labels, as in test/images."""
    splits = [*levels.tops]
    known = {folder.name for folder in found if splits[folder.top] != "test"}
    of_test = [folder.name for folder in found if splits[folder.top] == "test"]
    if not known or not of_test or known.intersection(of_test):
        return found
    line = "%s is not used: none of its folders (%s) is a class of train"
    log.warning(line, root / levels.tops["test"], printable(", ".join(of_test[:3])))
    return [folder for folder in found if splits[folder.top] != "test"]


def _require_classes(tree: Tree, tops: Sequence[str], found: Sequence[_ClassFolder]) -> list[str]:
    """Returns the sorted names of the classes: the folders of all splits, except those that hold
    only other files.

    Raises DataError if no class is left, or if the folders are no classes.
    """
    root, classes = tree.root, sorted({folder.name for folder in found})
    if not classes and any(map(is_description, tree.at().files)):
        raise DataError(f"{root} is a packed dataset: read it with data=shards")
    if not classes:
        refuse_archives(root, tree.at().files)
        raise DataError(f"{root} has no class folders: {_INSTEAD.format(root=root)}")
    filled = {folder.name for folder in found if folder.is_class}
    others = sorted({folder.name for folder in found if folder.is_class is False} - filled)
    for folder in found:
        if len(again := sorted(filled.intersection(folder.inner))) > 1:
            raise DataError(
                f"{root / tops[folder.top] / folder.name} holds the folders "
                f"{printable(', '.join(again[:3]))}, which are classes beside it, too: move it out "
                f"of {root}"
            )
    alike = {re.sub(r"\d+", "", name).lower() for name in filled}
    is_part = len(filled) > 1 and {*_OF_IMAGES} & {*re.findall("[a-z]+", min(alike))}
    if len(alike) == 1 and (is_part or min(alike) in _OF_IMAGES):
        only = printable(", ".join(sorted(filled)[:3]))
        beside = f" and other files in {printable(', '.join(others[:5]))}" if others else ""
        raise DataError(
            f"{root} has no class folders, but images in {only}{beside}: "
            f"{_INSTEAD.format(root=root)}; for boxes or masks see docs/data.md"
        )
    if filled and others:  # otherwise the caller raises the error for no images
        line = "%s: no classes, because they hold files but no images: %s"
        log.warning(line, root, printable(", ".join(others[:5])))
    return [name for name in classes if not filled or name not in others]


def _refuse_photos_and_masks(root: Path, found: Sequence[_ClassFolder]) -> None:
    """Raise DataError for two classes that seem to be photos and their masks: they have as many
    images, and their names differ by an ending, or one is called `images`."""
    held = [folder for folder in found if folder.top == 0 and folder.images]
    if len(held) != 2 or len(held[0].images) != len(held[1].images):
        return
    photos, masks = (
        [name[len(folder.name) : name.rindex(".")] for name in folder.images] for folder in held
    )
    if len("".join(photos)) > len("".join(masks)):
        photos, masks = masks, photos
    longer = (len("".join(masks)) - len("".join(photos))) // len(masks)
    is_alike = longer > 0 and {name + masks[0][-longer:] for name in photos} == {*masks}
    if is_alike or any(folder.name.lower() in OF_PHOTOS for folder in held):
        both = printable(" and ".join(folder.name for folder in held))
        raise DataError(
            f"{root}: {both} hold as many images each: if one holds the masks of the other, list "
            "both in a table with the columns path,mask (data.root=masks.csv), see docs/data.md; "
            "if they are classes, list them in one with path,label"
        )


def _log_layout(tree: Tree, levels: Levels) -> None:
    """Log which folders are read, unless their names tell, and which folders beside are not."""
    root, read = tree.root, dict[str, set[str]]()
    for top in levels.tops.values():
        parts = top.split("/") if top else []
        for depth, name in enumerate(parts):
            read.setdefault("".join(f"{part}/" for part in parts[:depth]), set()).add(name)
    if any(split_named(top) != split for split, top in levels.tops.items() if top):
        tops = ", ".join(f"{top} ({split})" if split else top for split, top in levels.tops.items())
        log.info("%s: the class folders lie in %s", root, printable(tops))
    beside = [
        f"{above}{name}"
        for above, known in read.items()
        for name in sorted(chain(*tree.at(above)))
        if name not in known
    ]
    if beside:
        what = "the class folders" if "" in levels.tops else "the folders of splits"
        line = "%s: only %s are read; ignored: %s"
        log.warning(line, root, what, printable(", ".join(beside[:5])))


def _words_inside(paths: Sequence[str]) -> Words:
    """Returns the words of the folders in class folders, as in `cat/train/1.jpg`."""
    found = [split_named(path.split("/")[1]) or "" for path in paths]
    words = sorted({*found})
    of = np.array([words.index(word) for word in found], np.int8)
    return Words("the folders in the class folders", words, of)


# Levels


def find_levels(tree: Tree) -> Levels:
    """Returns the levels of the class folders. Raises DataError if they are ambiguous.

    Lists the root, and usually a few of its folders.
    """
    root, names = tree.root, tree.at().folders
    if tops := _split_folders(tree, names):
        return Levels(_unwrapped(tree, tops))
    looks = {name: tree.at(name) for name in names[:_LOOKED_AT]}
    if not any(look.has_images for look in looks.values()):
        looks = {name: tree.at(name) for name in names}
    if any(look.has_images for look in looks.values()):
        return Levels({"": ""})
    inner = sorted({name for look in looks.values() for name in look.folders})
    splits = {split_named(name) for name in inner}
    if "train" in splits and None not in splits and len(names) > 1:
        return Levels({"": ""}, splits_inside=True)
    filled = [name for name in looks if tree.leads_to_images(name, _DEEPEST, _LOOKED_AT)]
    if len(filled) == 1:
        return _below(tree, filled[0])
    if any(len(looks[name].folders) > 1 for name in filled):
        shown, below = (printable(", ".join(each[:3])) for each in (filled, inner))
        raise DataError(
            f"{root}: {shown} hold no images themselves, only folders ({below}), so it is not "
            f"certain which are the classes: if {shown} are, move or link them into {root}/train "
            f"and add data.val_fraction=0.1; if {below} are, set data.root={root / filled[0]}"
        )
    return Levels({"": ""})


def _split_folders(tree: Tree, names: Sequence[str]) -> dict[str, str]:
    """Returns the folder of each split; empty if the folders are classes. Raises DataError.

    The folders are splits if one is `train`, or all are named as splits.
    """
    root, found = tree.root, splits_named(names)
    if "train" not in found.values() and len(found) < len(names):
        return {}
    others = [name for name in names if name not in found]
    if not any(tree.at(name).folders for name in found):
        beside = [name for name in others[:_LOOKED_AT] if tree.at(name).has_images]
        if beside and len(found) > 1 and all(map(split_named, found)):
            raise DataError(
                f"{root}: {' and '.join(found)} may be splits, or classes as "
                f"{printable(beside[0])}: they hold images themselves; rename them if they are "
                "classes, else give them class folders"
            )
        if beside:
            return {}
    return folder_of_each(root, found)


def _unwrapped(tree: Tree, tops: Mapping[str, str]) -> dict[str, str]:
    """Returns the folders of splits that hold the class folders, such as train/train for train.

    A class in the first split is no further level in another. Raises DataError.
    """
    root, found, looks, known = tree.root, dict[str, str](), dict[str, Names](), set[str]()
    for split, top in tops.items():
        look = tree.at(top)
        while len(look.folders) == 1 and not look.has_images:
            (only,) = look.folders
            inner = tree.at(f"{top}/{only}")
            is_level = bool(inner.folders) and not inner.has_images
            if only in known or top.count("/") > _DEEPEST or not (is_level or split_named(only)):
                break
            top, look = f"{top}/{only}", inner
        if len(look.folders) > 1 and all(map(split_named, look.folders)):
            if not any(tree.at(f"{top}/{name}").has_images for name in look.folders):
                splits = " and ".join(look.folders)
                raise DataError(
                    f"{root / top} holds no classes, but {splits}: set data.root={root / top}"
                )
        found[split], looks[top], known = top, look, known or {*look.folders}
    loose = [top for top, look in looks.items() if look.has_images]
    if loose and not known and not any(look.folders for look in looks.values()):
        raise DataError(
            f"{root} has no class folders: images lie directly in {', '.join(loose)}: "
            f"{_INSTEAD.format(root=root / loose[0])}"
        )
    return found


def _below(tree: Tree, name: str) -> Levels:
    """Returns the levels below the only folder that leads to images."""
    inner = tree.below(name)
    _refuse_masks(inner)
    levels = find_levels(inner)
    tops = {split: f"{name}/{top}".rstrip("/") for split, top in levels.tops.items()}
    return levels._replace(tops=tops)


def _refuse_masks(tree: Tree) -> None:
    if looks_like_masks(tree):
        raise DataError(
            f"{tree.root} holds images and their masks, not classes: train on them with data=masks "
            f"task=segmentation data.root={tree.root}"
        )
