"""JPEG files in the ImageFolder layout: root/<split>/<class>/**/*.jpg."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from entry_point.contract.printable import printable
from entry_point.data.errors import DataError
from entry_point.data.sources.class_folders import (
    existing_splits,
    loose_files,
    shared_class_names,
    visible_files,
)
from entry_point.data.sources.file_bytes import read_bytes
from entry_point.data.sources.label_kind import Kind

log = logging.getLogger(__name__)

JPEG_SUFFIXES = (".jpg", ".jpeg")


class FolderSource:
    """The JPEG files of one split, sorted by class and path."""

    kind: Kind = "class"
    sizes = None

    def __init__(self, root: Path, split: str) -> None:
        splits = [split, *(other for other in existing_splits(root) if other != split)]
        self.classes = shared_class_names(root, splits, "add or remove class folders")
        self._folder = root / split
        self._names: list[str] = []
        ignored = [file for file in loose_files(self._folder) if not file.startswith(".")]
        labels: list[int] = []
        convert = f'`make dataset ARGS="source={root} output=FOLDER"` converts other image formats'
        for label, name in enumerate(self.classes):
            files = list(visible_files(self._folder / name))
            jpegs = [file for file in files if _is_jpeg(file)]
            if not jpegs:
                raise DataError(
                    f"{self._folder / name} holds no JPEG file ({len(files)} others); {convert}"
                )
            ignored += (f"{name}/{file}" for file in files if not _is_jpeg(file))
            self._names += (f"{name}/{file}" for file in jpegs)
            labels += [label] * len(jpegs)
        self.labels = torch.tensor(labels)
        if ignored:
            log.warning(
                "%s: %d files are not JPEG and are ignored, for example %s; %s",
                self._folder,
                len(ignored),
                printable(ignored[0]),
                convert,
            )

    def __len__(self) -> int:
        return len(self._names)

    def read(self, index: int) -> Tensor:
        return read_bytes(f"{self._folder}/{self._names[index]}")

    def following(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return (indices + 1) % len(self)

    def key(self, index: int) -> str:
        return printable(str(self._folder / self._names[index]))


def _is_jpeg(file: str) -> bool:
    return file.lower().endswith(JPEG_SUFFIXES)
