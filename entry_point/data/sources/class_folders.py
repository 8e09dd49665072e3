"""The folder layout root/<split>/<class>/**: its splits, its classes and the files below them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import NoReturn

from entry_point.data.errors import DataError
from entry_point.data.sources.dataset_description import (
    CLASS_NAME,
    DESCRIPTION,
    SPLITS,
    is_class_name,
)


def require_folder(key: str, folder: Path) -> None:
    """Raise DataError, which names the setting `key`, unless `folder` is a folder."""
    if not folder.exists():
        raise DataError(f"{key}={folder}: no such folder")
    if not folder.is_dir():
        raise DataError(f"{key}={folder}: is a file; it must be a folder")


def require_no_val(root: Path, key: str, val_fraction: float) -> None:
    """Raise DataError, which names the setting `key`, if `root` already holds a split `val`."""
    if "val" in existing_splits(root):
        raise DataError(f"{key}={val_fraction}: {root / 'val'} exists; remove the one or the other")


def existing_splits(root: Path) -> list[str]:
    return [split for split in SPLITS if (root / split).is_dir()]


def class_names(root: Path, split: str, least: int = 1) -> list[str]:
    """The class folders of a split, sorted. Raises DataError if there are fewer than `least`."""
    require_folder("data.root", root)
    folder = root / split
    if not folder.is_dir():
        raise DataError(f"{folder} is missing: {root} must hold train/<class> and val/<class>")
    names = sorted(entry.name for entry in _entries(folder) if _is_class(entry))
    for name in names:
        if not is_class_name(name):
            raise DataError(f"{folder / name}: {CLASS_NAME}: rename it")
    if len(names) < least:
        if (root / DESCRIPTION).is_file():
            raise DataError(f"{root} holds {DESCRIPTION}: it is packed, read it with data=shards")
        raise DataError(f"{folder} has no class folders: put images into {folder}/<class>/")
    return names


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
    """Everything beside the class folders of a split, including hidden files and folders."""
    return sorted(entry.name for entry in _entries(folder) if not _is_class(entry))


def visible_files(folder: Path) -> Iterator[str]:
    """Paths of the files below `folder`, relative to it and sorted, without hidden ones."""
    return (file for file in all_files(folder) if not PurePath(file).name.startswith("."))


def all_files(folder: Path) -> Iterator[str]:
    """Like `visible_files`, with hidden files; a hidden folder is one path and is not entered."""
    for parent, folders, files in os.walk(folder, onerror=_raise_unlistable, followlinks=True):
        hidden = [name for name in folders if name.startswith(".")]
        loops = [name for name in folders if _is_loop(Path(parent), name)]
        folders[:] = sorted(set(folders).difference(hidden, loops))
        for name in sorted(files + hidden):
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
        return list(folder.iterdir())
    except OSError as error:
        _raise_unlistable(error)


def _raise_unlistable(error: OSError) -> NoReturn:
    raise DataError(f"{error.filename} cannot be listed: {error.strerror}") from error


def _is_class(entry: Path) -> bool:
    return entry.is_dir() and not entry.name.startswith(".")
