"""Reads class folders, root/<split>/<class>/** or root/<class>/**, and folders of plain images."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path, PurePath
from unicodedata import normalize

import numpy as np

from entry_point.data.errors import DataError
from entry_point.data.patience import patiently
from entry_point.data.plan.samples import Ints
from entry_point.data.sources.dataset_description import CLASS_NAME, is_class_name, is_packed
from entry_point.data.sources.index_file import FOLDER_INDEX
from entry_point.data.sources.listing import Labels, Listing, Words
from entry_point.data.sources.source import JPEG_SUFFIXES, FileSource, PathList
from entry_point.data.sources.splits import split_called
from entry_point.job.program import counted, printable

log = logging.getLogger(__name__)

IMAGE_SUFFIXES = (
    *JPEG_SUFFIXES,
    *(".png", ".webp", ".avif", ".gif", ".bmp", ".ppm", ".pgm", ".tif", ".tiff"),
)
"""Of the formats that are read, see decode/pillow.py."""


def require_folder(key: str, folder: Path) -> None:
    """Raise DataError, which names the setting `key`, unless `folder` is a folder."""
    if not folder.exists():
        raise DataError(f"{key}={folder}: no such file or folder")
    if not folder.is_dir():
        raise DataError(f"{key}={folder}: is a file; it must be a folder")


def list_classes(root: Path, *_: object) -> Listing:
    """Returns the images in class folders, sorted by split, class and path. Raises DataError.

    All class folders of all splits are the classes, also those without images.
    """
    require_folder("data.root", root)
    tops = split_folders(root) or {"": ""}
    folders = {top: _class_folders(root / top) for top in tops.values()}
    classes = sorted({name for names, _ in folders.values() for name in names})
    if not classes and is_packed(root):
        raise DataError(f"{root} is a packed dataset: read it with data=shards")
    if not classes:
        raise DataError(
            f"{root} has no class folders: put images into {root}/<class>/, or list them with "
            "their labels in a table (data.root=labels.csv)"
        )
    number = {name: i for i, name in enumerate(classes)}
    names, labels, top_of = list[str](), list[int](), list[int]()
    for i, (top, (below, ignored)) in enumerate(folders.items()):
        for name in below:
            files = list(visible_files(root / top / name))
            images = [file for file in files if file.lower().endswith(IMAGE_SUFFIXES)]
            if len(images) < len(files):
                ignored += [f"{name}/{file}" for file in sorted({*files} - {*images})]
            names += [f"{name}/{file}" for file in images]
            labels += [number[name]] * len(images)
            top_of += [i] * len(images)
        if ignored:
            line = "%s: ignoring %s, for example %s: only images in class folders are read"
            log.warning(line, root / top, counted(len(ignored), "file"), printable(ignored[0]))
    if others := _beside_splits(root, [*tops.values()]):
        line = "%s: only the folders of splits are read; ignored: %s"
        log.warning(line, root, printable(", ".join(others[:5])))
    if not names:
        endings = ", ".join(IMAGE_SUFFIXES)
        raise DataError(f"{root} holds no images; their names end in one of {endings}")
    paths, tops_of = PathList.of_names(names), np.array(top_of, np.int8)

    def source(rows: Ints, labels: Labels) -> FileSource:
        """Files below the folder of their split; below the root if they are of several."""
        used = np.unique(tops_of[rows]).tolist()
        top = list(folders)[used[0]] if len(used) == 1 else ""
        files = paths.only(rows)
        if len(used) > 1:
            parts = [list(folders)[n] for n in tops_of[rows].tolist()]
            files = PathList.of_names(f"{p}/{f}" for p, f in zip(parts, files, strict=True))
        folder = str(root / top)
        return FileSource(files, labels.values[rows], labels.names, "class", folder)

    words = Words("the folders", list(tops), tops_of)
    found = Labels("class", classes, np.array(labels, np.int64))
    return Listing("class folders", paths, found, words, source, paths.jpegs)


def list_images(path: Path) -> Listing:
    """Returns the images of a folder and of those below it, or one image, without labels.

    Raises DataError.
    """
    names, others = [path.name], Counter[str]()
    if path.is_dir():
        names = []
        for file in visible_files(path):
            if file.lower().endswith(IMAGE_SUFFIXES):
                names.append(file)
            else:
                others[PurePath(file).suffix.lower() or "without a suffix"] += 1
    if others:
        kinds = ", ".join(f"{count} {printable(suffix)}" for suffix, count in others.most_common(9))
        log.warning(
            "%s: skipping %s, not images by their names: %s; images end in %s",
            *(path, counted(others.total(), "file"), kinds, ", ".join(IMAGE_SUFFIXES)),
        )
    paths, folder = PathList.of_names(names), str(path if path.is_dir() else path.parent)

    def source(rows: Ints, labels: Labels) -> FileSource:
        return FileSource(paths.only(rows), labels.values[rows], labels.names, folder=folder)

    none = Labels.unknown(len(names))
    return Listing("images", paths, none, Words.none(len(names)), source, paths.jpegs)


def split_folders(root: Path) -> dict[str, str]:
    """Split -> its folder below the root; none for a root of class folders.

    They are splits if one is `train`, or if all that is there are splits by their names.
    Raises DataError for two folders of one split.
    """
    names = [entry.name for entry in visible_entries(root) if is_folder(entry)]
    found = [(split, name) for name in names if (split := split_called(name))]
    if not any(split == "train" for split, _ in found) and len(found) < len(names):
        return {}
    folders: dict[str, str] = {}
    for split in ("train", "val", "test"):
        of_split = [name for word, name in found if word == split]
        if len(of_split) > 1:
            both = " and ".join(of_split)
            raise DataError(f"{root}: {both} are both for {split}; remove or rename one")
        folders |= {split: of_split[0]} if of_split else {}
    return folders


def _class_folders(folder: Path) -> tuple[list[str], list[str]]:
    """Returns the class folders, and the files beside them but the index and hidden ones."""
    classes, files = list[str](), list[str]()
    for entry in visible_entries(folder):
        if is_folder(entry):
            if not is_class_name(entry.name):
                raise DataError(f"{folder / entry.name}: {CLASS_NAME}: rename it")
            classes.append(entry.name)
        elif entry.name != FOLDER_INDEX:
            files.append(entry.name)
    return classes, files


def _beside_splits(root: Path, splits: list[str]) -> list[str]:
    if splits == [""]:
        return []
    known = (*splits, FOLDER_INDEX)
    return [entry.name for entry in visible_entries(root) if entry.name not in known]


def visible_entries(folder: Path, most: int | None = None) -> list[os.DirEntry[str]]:
    """Returns the entries of a folder, or the first of them, without hidden ones, sorted by name.

    Raises DataError if it cannot be listed, and ReadError, see `patiently`.
    """
    try:
        return patiently(_visible_entries, folder, most)
    except OSError as error:
        raise DataError(f"{error.filename} cannot be listed: {error.strerror}") from error


def _visible_entries(folder: Path, most: int | None) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        visible = (entry for entry in entries if not entry.name.startswith("."))
        return sorted(islice(visible, most), key=lambda entry: entry.name)


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Returns whether it is a folder, or a link to one. Raises ReadError, see `patiently`."""
    try:
        return patiently(entry.is_dir, name=lambda: entry.path)
    except OSError:  # a link to itself
        return False


def visible_files(folder: Path, below: str = "") -> Iterator[str]:
    """Paths of the files below `folder`, relative to it and sorted, without hidden ones: those of a
    folder before those of the folders in it. Raises DataError and ReadError."""
    folders = []
    for entry in visible_entries(folder / below):
        if not is_folder(entry):
            yield f"{below}{entry.name}"
        elif not _is_loop(folder / below, entry.name):
            folders.append(entry.name)
    for name in folders:
        yield from visible_files(folder, f"{below}{name}/")


def _is_loop(parent: Path, name: str) -> bool:
    """Returns whether the folder is a link to one of its own parents."""
    link = parent / name
    if not link.is_symlink():
        return False
    target = link.resolve()
    return any(folder.resolve() == target for folder in (parent, *parent.parents))


def folded(name: str) -> str:
    """Returns a name as it is compared where case and the Unicode form do not count."""
    return normalize("NFC", name).casefold()


def log_formats(source: object, jpegs: int, images: int) -> None:
    """Say what the images cost that are not JPEGs, if there are any."""
    if jpegs < images:
        log.info(
            "%s: %d of %d images are not JPEGs; Pillow decodes them, 3 to 14 times slower",
            *(source, images - jpegs, images),
        )
