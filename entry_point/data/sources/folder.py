"""JPEG files in class folders: root/<split>/<class>/**/*.jpg, or root/<class>/**/*.jpg."""

from __future__ import annotations

import logging
from itertools import compress
from pathlib import Path

from entry_point.contract.printable import printable
from entry_point.data.errors import DataError
from entry_point.data.plan.path_split import chosen_for_val
from entry_point.data.sources.class_folders import (
    existing_splits,
    layout_of,
    loose_files,
    shared_class_names,
    visible_files,
)
from entry_point.data.sources.file_source import FileSource

log = logging.getLogger(__name__)

JPEG_SUFFIXES = (".jpg", ".jpeg")


class FolderSource(FileSource):
    """The JPEG files of one split, sorted by class and path.

    Without `val`, `val_fraction` of `train` is validated on instead; without `train` and `val`, of
    all images, and a tenth by default.
    """

    def __init__(self, root: Path, split: str, val_fraction: float | None = None) -> None:
        layout = layout_of(root, val_fraction, "data.val_fraction")
        folder = layout.folders[split]
        splits = [folder, *(each for each in existing_splits(root) if each != folder)]
        classes = shared_class_names(root, splits, "add or remove class folders")
        self._folder = root / folder
        self._names, labels = _jpegs(root, self._folder, classes)
        if layout.fraction is not None:
            in_split = chosen_for_val(self._names, layout.fraction) == (split == "val")
            self._names = list(compress(self._names, in_split))
            labels = list(compress(labels, in_split))
            if not self._names:
                raise DataError(f"data.val_fraction={layout.fraction} leaves no image for {split}")
            if split == "train" and (line := layout.describe(root)):
                log.info("%s", line)
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
