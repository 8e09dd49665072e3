"""JPEG files in the ImageFolder layout: root/<split>/<class>/**/*.jpg."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from entry_point.data.errors import DataError
from entry_point.data.sources.file_bytes import read_file

log = logging.getLogger(__name__)

JPEG_SUFFIXES = (".jpg", ".jpeg")
SPLITS = ("train", "val")


class FolderSource:
    """The JPEG files of one split, classes and files in name order."""

    sizes = None

    def __init__(self, root: Path, split: str) -> None:
        self.classes = class_names(root, split)
        _require_same_classes(root, self.classes, split)
        self._folder = root / split
        self._names: list[str] = []
        others: list[str] = []
        labels: list[int] = []
        others += (file for file in loose_files(self._folder) if not file.startswith("."))
        for label, name in enumerate(self.classes):
            files = list(files_below(self._folder / name))
            jpegs = [file for file in files if _is_jpeg(file)]
            if not jpegs:
                raise DataError(
                    f"{self._folder / name} holds no JPEG file ({len(files)} others); "
                    f"{_conversion(root)}"
                )
            others += (f"{name}/{file}" for file in files if not _is_jpeg(file))
            self._names += (f"{name}/{file}" for file in jpegs)
            labels += [label] * len(jpegs)
        self.labels = torch.tensor(labels)
        if others:
            log.warning(
                "%d files under %s are no JPEG and are left out, the first is %s; %s",
                len(others),
                self._folder,
                others[0],
                _conversion(root),
            )

    def __len__(self) -> int:
        return len(self._names)

    def read(self, index: int) -> Tensor:
        return read_file(f"{self._folder}/{self._names[index]}")

    def following(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return (indices + 1) % len(self)

    def key(self, index: int) -> str:
        return str(self._folder / self._names[index])


def class_names(root: Path, split: str, least: int = 1) -> list[str]:
    """The class folders of a split, sorted. Raises DataError where there are fewer than `least`."""
    require_folder("data.root", root)
    folder = root / split
    if not folder.is_dir():
        raise DataError(f"{folder} is missing: {root} must hold train/<class> and val/<class>")
    names = sorted(entry.name for entry in _entries(folder) if _is_class(entry))
    if len(names) < least:
        _require_unpacked(root)
        raise DataError(f"{folder} has no class folders: images belong in {folder}/<class>/")
    return names


def _conversion(root: Path) -> str:
    """What makes JPEGs of the others."""
    return f'`make dataset ARGS="source={root} output=FOLDER"` converts images of other formats'


def _require_unpacked(root: Path) -> None:
    from entry_point.data.sources.index import (
        DESCRIPTION,  # and Arrow, which plain files never need
    )

    if (root / DESCRIPTION).is_file():
        raise DataError(f"{root} holds {DESCRIPTION}: it is packed, read it with data=shards")


def require_folder(key: str, folder: Path) -> None:
    """Raise DataError, which names the setting `key`, unless there is such a folder."""
    if not folder.exists():
        raise DataError(f"{key}={folder}: there is no such folder")
    if not folder.is_dir():
        raise DataError(f"{key}={folder}: is a file, but a folder is needed")


def loose_files(folder: Path) -> list[str]:
    """What lies beside the class folders of a split, hidden files and folders among it."""
    return sorted(entry.name for entry in _entries(folder) if not _is_class(entry))


def files_below(folder: Path) -> Iterator[str]:
    """Paths below `folder`, relative to it, in name order; nothing hidden."""
    return (file for file in everything_below(folder) if not PurePath(file).name.startswith("."))


def everything_below(folder: Path) -> Iterator[str]:
    """The same with what is hidden; a hidden folder is one path, and not entered."""
    for parent, folders, files in os.walk(folder, onerror=_unreadable, followlinks=True):
        hidden = [name for name in folders if name.startswith(".")]
        loops = [name for name in folders if _leads_back(Path(parent), name)]
        folders[:] = sorted(set(folders).difference(hidden, loops))
        for name in sorted(files + hidden):
            yield (Path(parent) / name).relative_to(folder).as_posix()


def _leads_back(parent: Path, name: str) -> bool:
    """Whether it is a link to a folder on the way to it: there is nothing new, and no end to it."""
    link = parent / name
    if not link.is_symlink():
        return False
    target = link.resolve()
    return any(folder.resolve() == target for folder in (parent, *parent.parents))


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        _unreadable(error)


def _unreadable(error: OSError) -> NoReturn:
    raise DataError(f"{error.filename} cannot be listed: {error.strerror}") from error


def _is_jpeg(file: str) -> bool:
    return file.lower().endswith(JPEG_SUFFIXES)


def _is_class(entry: Path) -> bool:
    return entry.is_dir() and not entry.name.startswith(".")


def _require_same_classes(root: Path, classes: list[str], split: str) -> None:
    """Labels are places in the list of names, so both splits must have the same list."""
    for other in SPLITS:
        if other == split or not (root / other).is_dir():
            continue
        difference = sorted(set(classes) ^ set(class_names(root, other)))
        if difference:
            raise DataError(
                f"the class folders of {root / split} and {root / other} differ: "
                f"{', '.join(difference[:5])} in only one of them"
            )
