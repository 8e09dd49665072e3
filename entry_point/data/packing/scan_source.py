"""Scans a source folder: which files to pack, and why the others are rejected."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from entry_point.data.errors import DataError
from entry_point.data.sources.class_folders import (
    FOLDER_INDEX,
    all_files,
    class_names,
    existing_splits,
    loose_files,
    shared_class_names,
)
from entry_point.data.sources.dataset_description import CLASS_NAME, SPLITS, is_class_name

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")


class Entry(NamedTuple):
    """One file of the source."""

    path: str
    """Relative to the source: <split>/<class>/..., <class>/..., or as in the table."""
    key: str
    """<class>/<name>, or the path in the table, without suffix: the name of its members."""
    label: int | str
    """The class's number. Of the kinds `labels` and `numbers`: the label as JSON."""
    bytes: int
    changed: int
    """Modification time in nanoseconds."""
    rejected: str
    """Why the file is not packed, or empty.

    The text is part of the fingerprint: a new wording makes finished datasets look outdated."""


def list_classes(source: Path, file: str | None) -> list[str]:
    """Class names: those in `file`, or else the class folders, which all splits must share."""
    if file is not None:
        return _read_classes(Path(file))
    splits = existing_splits(source) or [""]
    return shared_class_names(source, splits, "rename a folder, or list all in classes=FILE")


def list_left_out(source: Path) -> list[str]:
    """Names beside the splits, which are not packed."""
    if not existing_splits(source):
        return []
    known = (*SPLITS, FOLDER_INDEX)
    return sorted(_printable(entry.name) for entry in source.iterdir() if entry.name not in known)


def scan_split(
    source: Path, split: str, classes: list[str], *, all_classes: bool
) -> Iterator[Entry]:
    """All files in the folder of a split, in name order; "" is a root of class folders.

    Raises DataError for a folder that is not in `classes`; if `all_classes` must have images, also
    for a class that has none.
    """
    labels = {name: label for label, name in enumerate(classes)}
    present = class_names(source, split, least=int(all_classes))
    for file in loose_files(source / split):
        if (split, file) != ("", FOLDER_INDEX):
            path = PurePosixPath(split, file).as_posix()
            yield entry_of(source, path, file, -1, "lies in no class folder")
    for name in present:
        if name not in labels:
            raise DataError(f"{source / split / name}: {name} is not in the list of classes")
        images = 0
        for file in all_files(source / split / name):
            path = f"{name}/{file}"
            entry = entry_of(source, PurePosixPath(split, path).as_posix(), path, labels[name])
            images += not entry.rejected
            yield entry
        if all_classes and not images:
            raise DataError(f"{source / split / name} holds no image: add images or remove it")


def _read_classes(file: Path) -> list[str]:
    try:
        names = {line.strip() for line in file.read_text("utf-8").splitlines()}
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"classes={file} cannot be read: {error}") from error
    for name in names:
        if not is_class_name(name):
            raise DataError(f"classes={file}: {name}: {CLASS_NAME}")
    return sorted(names - {""})


def entry_of(source: Path, path: str, name: str, label: int | str, rejected: str = "") -> Entry:
    """The file `path` of the source, whose key is `name` without its suffix."""
    size = changed = 0
    rejected = rejected or _reject_by_name(path)
    if not rejected:
        try:
            status = (source / path).stat()
            size, changed = status.st_size, status.st_mtime_ns
            if not stat.S_ISREG(status.st_mode):
                rejected = "is no regular file"
        except OSError as error:
            rejected = f"unreadable: {error.strerror}"
    return Entry(_printable(path), _key(name), label, size, changed, rejected)


def _reject_by_name(path: str) -> str:
    if PurePosixPath(path).name.startswith("."):
        return "hidden"
    if not path.lower().endswith(IMAGE_SUFFIXES):
        return f"no image by its name, which ends in none of {', '.join(IMAGE_SUFFIXES)}"
    return "" if _printable(path) == path else "its name is no UTF-8: rename it"


def _key(name: str) -> str:
    # Readers of tar shards treat everything after a name's first dot as the member's type.
    file = PurePosixPath(_printable(name))
    return str(file.with_name(file.stem.replace(".", "_")))


def _printable(name: str) -> str:
    """The name, with the bytes that are not UTF-8 as escapes."""
    return name.encode("utf-8", "backslashreplace").decode()
