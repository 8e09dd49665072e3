"""Image files in class folders: root/<split>/<class>/**, or root/<class>/**."""

from __future__ import annotations

import logging
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from entry_point.contract.printable import printable
from entry_point.data.errors import DataError
from entry_point.data.patience import patiently
from entry_point.data.plan.philox import philox, unit
from entry_point.data.sources.dataset_description import (
    CLASS_NAME,
    SPLITS,
    is_class_name,
    is_packed,
)
from entry_point.data.sources.index_file import FOLDER_INDEX
from entry_point.data.sources.source import JPEG_SUFFIXES, FileSource

log = logging.getLogger(__name__)

IMAGE_SUFFIXES = (
    *JPEG_SUFFIXES,
    *(".png", ".webp", ".avif", ".gif", ".bmp", ".ppm", ".pgm", ".tif", ".tiff"),
)
"""Of the formats that are read, see decode/pillow.py."""
IMAGES, MASKS, CLASSES = "images", "masks", "classes.txt"
"""What a split of images with masks holds, and the file beside the splits: see masks.py."""
VAL_FRACTION = 0.1
"""Of a dataset without splits, where nothing else is asked for."""
VAL_FOLDERS = ("val", "valid", "validation")
_SPLIT_STREAM = 41
_SPLIT_OF = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(VAL_FOLDERS, "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}


def require_folder(key: str, folder: Path) -> None:
    """Raise DataError, which names the setting `key`, unless `folder` is a folder."""
    if not folder.exists():
        raise DataError(f"{key}={folder}: no such folder")
    if not folder.is_dir():
        raise DataError(f"{key}={folder}: is a file; it must be a folder")


@dataclass(frozen=True)
class Layout:
    """Where the class folders of the splits are."""

    folders: dict[str, str]
    """Split -> its folder below the root; both have one if `fraction` divides it, which is "" for
    a root of class folders."""
    fraction: float | None
    """Share of the images that is `val`; None if `val` has a folder."""

    def describe(self, root: Path) -> str:
        """For the log; empty where `train` has a folder."""
        if not self.fraction or set(self.folders.values()) != {""}:
            return ""
        return (
            f"{root} holds no folders train and val: {100 * self.fraction:g} % of the images are "
            f"for validation, chosen by a hash of their paths (val_fraction={self.fraction:g})"
        )


def layout_of(root: Path, val_fraction: float | None) -> Layout:
    """The layout of a folder. Raises DataError."""
    splits = split_folders(root)
    if val_fraction is not None and "val" in splits:
        folder = root / splits["val"]
        raise DataError(f"data.val_fraction={val_fraction}: {folder} exists; remove one of them")
    if splits or not root.is_dir():
        undivided = {split: split for split in SPLITS} | splits
        return Layout(undivided, None) if val_fraction is None else _divided("train", val_fraction)
    found = sorted(entry.name for entry in _entries(root) if _is_class(entry))
    if found and all(name.lower() in _SPLIT_OF for name in found):
        raise DataError(
            f"{root} holds {' and '.join(found)}: the folders of splits must be named train and "
            f"val: rename them; if they are classes, move them into {root / 'train'}"
        )
    return _divided("", VAL_FRACTION if val_fraction is None else val_fraction)


def _divided(folder: str, fraction: float) -> Layout:
    return Layout(dict.fromkeys(SPLITS, folder), fraction)


def split_folders(root: Path) -> dict[str, str]:
    """Split -> its folder below the root, for the splits that have one.

    That of `val` may be called `valid` or `validation` beside `train`; alone, these are classes.
    Raises DataError for two of them.
    """
    folders = {"train": "train"} if (root / "train").is_dir() else {}
    names = VAL_FOLDERS if folders else VAL_FOLDERS[:1]
    found = [name for name in names if (root / name).is_dir()]
    if len(found) > 1:
        both = " and ".join(found)
        raise DataError(f"{root}: {both} are both for validation; remove or rename one")
    return folders | ({"val": found[0]} if found else {})


def class_names(root: Path, split: str, least: int = 1) -> list[str]:
    """The class folders of a split, sorted. Raises DataError if there are fewer than `least`.

    `split` is its folder, "" for a root of class folders.
    """
    require_folder("data.root", root)
    folder = root / split
    if not folder.is_dir():
        raise DataError(
            f"{folder} is missing: {root} must hold train/<class> and val/<class>; without val, "
            "data.val_fraction=0.1 validates on a tenth of train"
        )
    names = sorted(entry.name for entry in _entries(folder) if _is_class(entry))
    if holds_masks(root, split):
        raise DataError(
            f"{folder} holds images and their masks, not classes: train on them with data=masks "
            "task=segmentation; they are not packed"
        )
    for name in names:
        if not is_class_name(name):
            raise DataError(f"{folder / name}: {CLASS_NAME}: rename it")
    if len(names) < least:
        if is_packed(root):
            raise DataError(f"{root} is a packed dataset: read it with data=shards")
        raise DataError(
            f"{folder} has no class folders: put images into {folder}/<class>/, or list them with "
            "their labels in a table (data=manifest data.root=labels.csv)"
        )
    return names


def holds_masks(root: Path, split: str = "train") -> bool:
    """Whether the split has images with masks, not class folders."""
    has_folders = all((root / split / name).is_dir() for name in (IMAGES, MASKS))
    return has_folders and (root / CLASSES).is_file()


def shared_class_names(root: Path, splits: Sequence[str], remedy: str) -> list[str]:
    """The class folders of the first split, sorted. Raises DataError if another split differs.

    A label is a position in this list, so all splits must have the same list.
    """
    names = class_names(root, splits[0])
    for other in splits[1:]:
        difference = sorted(set(names) ^ set(class_names(root, other)))
        if difference:
            raise DataError(
                f"the class folders of {root / splits[0]} and {root / other} differ, only one "
                f"has {', '.join(difference[:5])}: {remedy}"
            )
    return names


def loose_files(folder: Path) -> list[str]:
    """Everything beside the class folders and the index but hidden files and folders."""
    loose = (entry.name for entry in _entries(folder) if not _is_class(entry))
    return sorted(name for name in loose if name != FOLDER_INDEX and not name.startswith("."))


def visible_files(folder: Path) -> Iterator[str]:
    """Paths of the files below `folder`, relative to it and sorted, without hidden ones."""
    for parent, folders, files in os.walk(folder, onerror=_raise_unlistable, followlinks=True):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and not _is_loop(Path(parent), name)
        )
        for name in sorted(files):
            if not name.startswith("."):
                yield (Path(parent) / name).relative_to(folder).as_posix()


def _is_loop(parent: Path, name: str) -> bool:
    """Whether the folder is a link to one of its own parents."""
    link = parent / name
    if not link.is_symlink():
        return False
    target = link.resolve()
    return any(folder.resolve() == target for folder in (parent, *parent.parents))


def _entries(folder: Path) -> list[Path]:
    try:
        return patiently(lambda each: list(each.iterdir()), folder)
    except OSError as error:
        _raise_unlistable(error)


def _raise_unlistable(error: OSError) -> NoReturn:
    raise DataError(f"{error.filename} cannot be listed: {error.strerror}") from error


def _is_class(entry: Path) -> bool:
    return entry.is_dir() and not entry.name.startswith(".")


def chosen_for_val(paths: Iterable[str], fraction: float) -> NDArray[np.bool_]:
    """Whether each image is in `val`: a function of its path alone.

    So it is the same on every machine, and adding images moves no other image.
    """
    checksums = [zlib.crc32(path.encode("utf-8", "surrogateescape")) for path in paths]
    words = philox((0, _SPLIT_STREAM), (np.array(checksums, np.uint64), 0, 0, 0))
    return unit(words[0]) < fraction


class FolderSource(FileSource):
    """The images of one split, sorted by class and path.

    Without `val`, `val_fraction` of `train` is validated on instead; without `train` and `val`, of
    all images, and a tenth by default. If `root` holds only a `share` of the files of a dataset, a
    class may have no image.
    """

    def __init__(
        self,
        root: Path,
        split: str,
        val_fraction: float | None = None,
        *,
        share: bool = False,
    ) -> None:
        layout = layout_of(root, val_fraction)
        folder = layout.folders[split]
        splits = [folder, *(each for each in split_folders(root).values() if each != folder)]
        if share:
            classes = sorted({name for each in splits for name in class_names(root, each, least=0)})
        else:
            classes = shared_class_names(root, splits, "add or remove class folders")
        self.folder = str(root / folder)
        self._names, labels = _images(root / folder, classes, share)
        if layout.fraction is not None:
            in_split = chosen_for_val(self._names, layout.fraction) == (split == "val")
            self._names = list(compress(self._names, in_split))
            labels = list(compress(labels, in_split))
            if not self._names and not share:
                raise DataError(f"data.val_fraction={layout.fraction} leaves no image for {split}")
            if split == "train" and (line := layout.describe(root)):
                log.info("%s", line)
        super().__init__(self._names, labels, classes)

    def file(self, index: int) -> str:
        return f"{self.folder}/{self._names[index]}"

    @property
    def jpegs(self) -> int:
        """How many files are JPEGs by their names."""
        return sum(name.lower().endswith(JPEG_SUFFIXES) for name in self._names)


def _images(folder: Path, classes: list[str], share: bool) -> tuple[list[str], list[int]]:
    """The images of a split, relative to its folder, and their labels."""
    names: list[str] = []
    labels: list[int] = []
    ignored = loose_files(folder)
    for label, name in enumerate(classes):
        files = list(visible_files(folder / name)) if (folder / name).is_dir() else []
        images = [file for file in files if file.lower().endswith(IMAGE_SUFFIXES)]
        if not images and not share:
            raise DataError(
                f"{folder / name} holds no image ({len(files)} other files): a name must end in "
                f"one of {', '.join(IMAGE_SUFFIXES)}"
            )
        ignored += (f"{name}/{file}" for file in files if not file.lower().endswith(IMAGE_SUFFIXES))
        names += (f"{name}/{file}" for file in images)
        labels += [label] * len(images)
    if ignored:
        line = "%s: %d files are ignored, for example %s: only images in class folders are read"
        log.warning(line, folder, len(ignored), printable(ignored[0]))
    return names, labels


def split_of(path: str) -> str | None:
    """The split that a word of a file's path names; the last such word counts."""
    words = re.findall(r"[a-z]+", path.lower())
    return next((_SPLIT_OF[word] for word in reversed(words) if word in _SPLIT_OF), None)


def log_formats(source: object, jpegs: int, images: int) -> None:
    """Say what the images of a split cost that are no JPEGs, if there are any."""
    if jpegs < images:
        log.info(
            "%s: %d of %d images are no JPEGs: Pillow decodes them, and each takes 3 to 14 times "
            "as long as a crop of a JPEG",
            *(source, images - jpegs, images),
        )
