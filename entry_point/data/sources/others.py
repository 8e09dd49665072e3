"""Splits and labels of files of others that hold many images: tar and Parquet files."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entry_point.data.errors import DataError
from entry_point.data.sources.dataset_description import CLASS_NAME, SPLITS, Kind, is_class_name
from entry_point.data.sources.folder import VAL_FRACTION, chosen_for_val, split_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Division:
    """Which of the files in a folder are read, and what divides their images into splits."""

    folder: str | Path
    files: list[str]
    """Those of the splits train and val, or all if their names tell no split."""
    fraction: float | None
    """The share of the images that is `val`, by a hash; None if the files' names tell it."""

    @classmethod
    def of(cls, folder: str | Path, files: Sequence[str], val_fraction: float | None) -> Division:
        """Raises DataError for a share although files are for `val` by their names."""
        splits = [split_of(file) for file in files]
        known = [file for file, split in zip(files, splits, strict=True) if split in SPLITS]
        if not any(splits):
            return cls(folder, list(files), VAL_FRACTION if val_fraction is None else val_fraction)
        if val_fraction is not None and "val" in splits:
            raise DataError(
                f"data.val_fraction={val_fraction}: the names of the files in {folder} say which "
                "are for validation; remove one of them"
            )
        if not known:
            raise DataError(f"{folder}: no name of a file says train or val")
        if others := len(files) - len(known):
            log.info("%s: ignoring %d files of other splits than train and val", folder, others)
        return cls(folder, known, val_fraction)

    def is_val(self, file_of: NDArray[np.integer], names: Iterable[str]) -> NDArray[np.bool_]:
        """Of images with these names, in the files at these positions.

        Raises DataError for a split without images.
        """
        if self.fraction is None:
            found = np.array([split_of(file) == "val" for file in self.files], bool)[file_of]
        else:
            found = chosen_for_val(list(names), self.fraction)
        for split, count in (("train", (~found).sum()), ("val", found.sum())):
            if not count:
                must = "both train and val need some"
                if split == "val" and self.fraction is None:
                    must += "; data.val_fraction=0.1 takes a tenth of train"
                raise DataError(f"{self.folder}: no image is for {split}: {must}")
        return found

    def log(self, is_val: NDArray[np.bool_], kind: Kind, names: Sequence[str]) -> None:
        """Say what was found."""
        how = "by the names of the files"
        if self.fraction is not None:
            how = f"by a hash of the images' names, val_fraction={self.fraction:g}"
        log.info(
            "%s: %d files, %d images: %d to train on, %d to validate (%s), %s: %d",
            *(self.folder, len(self.files), len(is_val), int((~is_val).sum()), int(is_val.sum())),
            *(how, {"class": "classes"}.get(kind, kind), len(names)),
        )


def numbered(
    rows: Sequence[str | Sequence[str]], error: Callable[[int, str], DataError]
) -> tuple[Kind, list[str], NDArray[Any]]:
    """Kind, names and values of the labels of images, see Source; lists are several labels.

    Whole numbers are sorted by value. `error` makes one for the image at a position.
    """
    several = any(not isinstance(row, str) for row in rows)
    lists = [[row] if isinstance(row, str) else row for row in rows]
    names = sorted({name for row in lists for name in row})
    for name in names:
        if not is_class_name(name):
            place = next(i for i, row in enumerate(lists) if name in row)
            raise error(place, f"the label {name!r}: {CLASS_NAME}")
    if all(re.fullmatch(r"\d{1,18}", name) for name in names):
        names.sort(key=lambda name: (int(name), name))
    numbers = {name: number for number, name in enumerate(names)}
    return values_of([[numbers[name] for name in row] for row in lists], names, several, error)


def values_of(
    rows: Sequence[Sequence[int]],
    names: list[str],
    several: bool,
    error: Callable[[int, str], DataError],
) -> tuple[Kind, list[str], NDArray[Any]]:
    """The same of labels that are positions in `names`."""
    if several:
        values = np.zeros((len(rows), len(names)), np.float32)
        for place, row in enumerate(rows):
            values[place, row] = 1
        return "labels", names, values
    if len(names) < 2:
        raise error(0, f"all images have the label {names[0]!r}; training needs two")
    return "class", names, np.array([row[0] for row in rows], np.int64)
