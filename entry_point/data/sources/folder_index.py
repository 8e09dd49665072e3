"""The side indexes of a folder of images that stays as it is: its file `jpeg-index.safetensors`.

The keys are the images' paths below the folder; the column `bytes` has their sizes when they were
indexed.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entry_point.data.errors import DataError
from entry_point.data.sources.class_folders import FOLDER_INDEX
from entry_point.data.sources.index_file import (
    SIDE_LENGTH,
    SIDE_OFFSET,
    IndexFile,
    IndexWriter,
    SideIndexes,
)

_BYTES = "bytes"
_TYPES = {_BYTES: np.int64}
_SECONDS = 5.0
"""Looking up the sizes of files on a slow file system may take hours. A file that is not looked up
by then is compared with its index when it is decoded."""

log = logging.getLogger(__name__)


class IndexedFile(NamedTuple):
    path: str
    """Below the folder of images."""
    size: int
    """In bytes."""
    side_index: bytes
    """The side index, empty for none."""


def write_folder_index(file: BinaryIO, files: Iterator[Sequence[IndexedFile]]) -> int:
    """Write the files, chunk by chunk; returns the bytes of the side indexes. Raises OSError."""
    writer = IndexWriter(file, _TYPES)
    for chunk in files:
        sizes = {_BYTES: [each.size for each in chunk]}
        keys = [os.fsencode(each.path) for each in chunk]
        writer.add(sizes, keys, [each.side_index for each in chunk])
    writer.finish()
    return writer.side_bytes


def index_holder(index_root: Path | None, root: Path, key: str = "data.index_root") -> Path | None:
    """The folder that holds the index of images below `root`; None if there is none.

    Raises DataError if `index_root`, the setting `key`, is given and holds none.
    """
    holder = index_root or root
    if (holder / FOLDER_INDEX).exists():
        return holder
    if index_root is None:
        return None
    raise DataError(
        f"{key}={index_root}: holds no {FOLDER_INDEX}; make it with "
        f'`make dataset ARGS="source={root} output={index_root} output_format=index"`'
    )


def find_side_indexes(index_root: Path, root: str, paths: Sequence[str]) -> SideIndexes | None:
    """The side indexes that `index_root` holds for `paths` below `root`; None if there are none.

    A warning counts the images without one: new files, and files of another size than when they
    were indexed.
    """
    file = index_root / FOLDER_INDEX
    try:
        found = _look_up(file, paths)
    except (OSError, DataError) as error:
        log.warning("%s; %d images %s", error, len(paths), _CONSEQUENCE)
        return None
    new = int((found.sizes < 0).sum())
    changed = _changed(root, paths, found.sizes)
    found.lengths[changed] = 0
    if new or len(changed):
        log.warning(
            "%s: %d of %d images are new and %d have changed since: they %s",
            *(file, new, len(paths), len(changed), _CONSEQUENCE),
        )
    return SideIndexes([file], found.offsets, found.lengths) if found.lengths.any() else None


def every_side_index(index_root: Path, paths: Sequence[str]) -> SideIndexes:
    """The side indexes that `index_root` holds for `paths`, also those of changed files.

    Raises OSError or DataError if the folder's index is damaged.
    """
    file = index_root / FOLDER_INDEX
    found = _look_up(file, paths)
    return SideIndexes([file], found.offsets, found.lengths)


_CONSEQUENCE = (
    "decode without a side index, slower and to the same pixels; `make dataset "
    'ARGS="source=FOLDER output_format=index"` makes the indexes again'
)


@dataclass(frozen=True)
class _Found:
    """For each path, its side index and the file's size when it was indexed, -1 if it was not."""

    offsets: NDArray[np.int64]
    lengths: NDArray[np.int32]
    sizes: NDArray[np.int64]


def _look_up(file: Path, paths: Sequence[str]) -> _Found:
    """Raises OSError or DataError if the index is damaged."""
    index = IndexFile(file, _TYPES, mapped=False)
    count = len(paths)
    found = _Found(np.zeros(count, np.int64), np.zeros(count, np.int32), np.full(count, -1))
    rows = {key: row for row, key in enumerate(index.keys())}
    places = np.array([rows.get(os.fsencode(path), -1) for path in paths], np.int64)
    known = np.flatnonzero(places >= 0)
    try:
        for filled, column in (
            (found.offsets, SIDE_OFFSET),
            (found.lengths, SIDE_LENGTH),
            (found.sizes, _BYTES),
        ):
            filled[known] = index[column][places[known]]
    except IndexError as error:
        raise DataError(f"{file} is damaged ({error})") from error
    return found


def _changed(root: str, paths: Sequence[str], sizes: NDArray[np.int64]) -> list[int]:
    """The files that have another size than `sizes`, as far as looked up in time."""
    return list(_differing(root, paths, sizes, time.monotonic() + _SECONDS))


def _differing(
    root: str, paths: Sequence[str], sizes: NDArray[np.int64], end: float
) -> Iterator[int]:
    for place in np.flatnonzero(sizes >= 0).tolist():
        if time.monotonic() > end:
            return
        try:
            size = Path(root, paths[place]).stat().st_size
        except OSError:
            size = -1
        if size != sizes[place]:
            yield place
