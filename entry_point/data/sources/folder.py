"""JPEG files in the ImageFolder layout: root/<split>/<class>/**/*.jpg."""

from __future__ import annotations

import logging
from itertools import compress
from pathlib import Path

from entry_point.contract.printable import printable
from entry_point.data.errors import DataError
from entry_point.data.plan.path_split import chosen_for_val
from entry_point.data.sources.class_folders import (
    existing_splits,
    loose_files,
    require_no_val,
    shared_class_names,
    visible_files,
)
from entry_point.data.sources.file_source import FileSource

log = logging.getLogger(__name__)

JPEG_SUFFIXES = (".jpg", ".jpeg")


class FolderSource(FileSource):
    """The JPEG files of one split, sorted by class and path.

    With `val_fraction`, a folder without `val`: that share of `train` is validated on instead.
    """

    def __init__(self, root: Path, split: str, val_fraction: float | None = None) -> None:
        if val_fraction is not None:
            require_no_val(root, "data.val_fraction", val_fraction)
        folder = root / (split if val_fraction is None else "train")
        splits = [folder.name, *(each for each in existing_splits(root) if each != folder.name)]
        classes = shared_class_names(root, splits, "add or remove class folders")
        self._folder = folder
        self._names, labels = _jpegs(root, folder, classes)
        if val_fraction is not None:
            in_split = chosen_for_val(self._names, val_fraction) == (split == "val")
            self._names = list(compress(self._names, in_split))
            labels = list(compress(labels, in_split))
            if not self._names:
                raise DataError(f"data.val_fraction={val_fraction} leaves no image for {split}")
        super().__init__(self._names, labels, classes)

    def file(self, index: int) -> str:
        return f"{self._folder}/{self._names[index]}"


def _jpegs(root: Path, folder: Path, classes: list[str]) -> tuple[list[str], list[int]]:
    """The JPEG files of a split, relative to its folder, and their labels."""
    names: list[str] = []
    labels: list[int] = []
    ignored = [file for file in loose_files(folder) if not file.startswith(".")]
    convert = f'`make dataset ARGS="source={root} output=FOLDER"` converts other image formats'
    for label, name in enumerate(classes):
        files = list(visible_files(folder / name))
        jpegs = [file for file in files if _is_jpeg(file)]
        if not jpegs:
            raise DataError(f"{folder / name} holds no JPEG file ({len(files)} others); {convert}")
        ignored += (f"{name}/{file}" for file in files if not _is_jpeg(file))
        names += (f"{name}/{file}" for file in jpegs)
        labels += [label] * len(jpegs)
    if ignored:
        log.warning(
            "%s: %d files are not JPEG and are ignored, for example %s; %s",
            folder,
            len(ignored),
            printable(ignored[0]),
            convert,
        )
    return names, labels


def _is_jpeg(file: str) -> bool:
    return file.lower().endswith(JPEG_SUFFIXES)
