"""The side indexes of a folder of images that stays as it is: the folder `jpeg-index` in it.

jpeg-index/files.parquet  path below the folder, size in bytes, length of the side index
jpeg-index/index.jix      the side indexes in the same order
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from arro3.core import Array, DataType, Field, RecordBatch, Schema
from numpy.typing import NDArray

from entry_point.contract.whole_file import whole_file
from entry_point.data.errors import DataError
from entry_point.data.sources.class_folders import FOLDER_INDEX
from entry_point.data.sources.parquet import parquet_batches, write_batches
from entry_point.data.sources.side_indexes import (
    SIDE_INDEXES,
    SideIndexes,
    SideIndexWriter,
    wrong_size,
)

_FILES = "files.parquet"
_ROWS = 65536  # per read
_SECONDS = 5.0
"""Looking up the sizes of files on a slow file system may take hours. A file that is not looked up
by then is compared with its index when it is decoded."""
_SCHEMA = Schema(
    [
        Field("path", DataType.string(), nullable=False),
        Field("bytes", DataType.int64(), nullable=False),
        Field("index_length", DataType.int32(), nullable=False),
    ]
)

log = logging.getLogger(__name__)


class IndexedFile(NamedTuple):
    path: str
    """Below the folder of images."""
    size: int
    """In bytes."""
    side_index: bytes
    """The side index, empty for none."""


def write_folder_index(folder: Path, files: Iterable[Sequence[IndexedFile]]) -> int:
    """Write the files of a folder index into `folder`; returns the bytes of the side indexes."""
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(folder / SIDE_INDEXES) as side_file, whole_file(folder / _FILES) as file:
        side = SideIndexWriter(side_file)
        write_batches(file, _SCHEMA, (_record_batch(chunk, side) for chunk in files))
        side.finish()
    return (folder / SIDE_INDEXES).stat().st_size


def _record_batch(files: Sequence[IndexedFile], side: SideIndexWriter) -> RecordBatch:
    lengths = side.write([file.side_index for file in files])
    arrays = [
        Array([file.path for file in files], type=DataType.string()),
        Array([file.size for file in files], type=DataType.int64()),
        Array(lengths, type=DataType.int32()),
    ]
    return RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def index_holder(index_root: Path | None, root: Path, key: str = "data.index_root") -> Path | None:
    """The folder that holds the folder index of images below `root`; None if there is none.

    Raises DataError if `index_root`, the setting `key`, is given and holds none.
    """
    holder = index_root or root
    if (holder / FOLDER_INDEX).is_dir():
        return holder
    if index_root is None:
        return None
    raise DataError(
        f"{key}={index_root}: holds no folder {FOLDER_INDEX}; make it with "
        f'`make dataset ARGS="source={root} output={index_root} output_format=index"`'
    )


def find_side_indexes(index_root: Path, root: str, paths: Sequence[str]) -> SideIndexes | None:
    """The side indexes that `index_root` holds for `paths` below `root`; None if there are none.

    A warning counts the images without one: new files, and files of another size than when they
    were indexed.
    """
    folder = index_root / FOLDER_INDEX
    try:
        found = _look_up(folder, paths)
    except (OSError, DataError) as error:
        log.warning("%s: %s; %d images %s", folder, error, len(paths), _CONSEQUENCE)
        return None
    new = int((found.sizes < 0).sum())
    changed = _changed(root, paths, found.sizes)
    found.lengths[changed] = 0
    if new or len(changed):
        log.warning(
            "%s: %d of %d images are new and %d have changed since: they %s",
            *(folder, new, len(paths), len(changed), _CONSEQUENCE),
        )
    if not found.lengths.any():
        return None
    return SideIndexes(folder / SIDE_INDEXES, found.offsets, found.lengths)


def every_side_index(index_root: Path, paths: Sequence[str]) -> SideIndexes:
    """The side indexes that `index_root` holds for `paths`, also those of changed files.

    Raises OSError or DataError if the folder index is damaged.
    """
    folder = index_root / FOLDER_INDEX
    found = _look_up(folder, paths)
    return SideIndexes(folder / SIDE_INDEXES, found.offsets, found.lengths)


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


def _look_up(folder: Path, paths: Sequence[str]) -> _Found:
    """Raises OSError or DataError if the folder index is damaged."""
    count = len(paths)
    found = _Found(np.zeros(count, np.int64), np.zeros(count, np.int32), np.full(count, -1))
    places = {path: place for place, path in enumerate(paths)}
    start = 0
    for batch in parquet_batches(folder / _FILES, _ROWS, _check, "make the indexes again"):
        lengths = np.asarray(batch["index_length"].to_numpy(), np.int64)
        if (lengths < 0).any():
            raise DataError(f"{_FILES} is damaged: it has negative lengths")
        ends = start + np.cumsum(lengths)
        known = [places.get(path, -1) for path in batch["path"].to_pylist()]
        rows = np.flatnonzero(np.array(known) >= 0)
        at = np.array(known, np.int64)[rows]
        found.offsets[at] = (ends - lengths)[rows]
        found.lengths[at] = lengths[rows]
        found.sizes[at] = np.asarray(batch["bytes"].to_numpy())[rows]
        start += int(lengths.sum())
    if reason := wrong_size(folder / SIDE_INDEXES, start):
        raise DataError(f"{SIDE_INDEXES} {reason}")
    return found


def _check(schema: Schema) -> None:
    if schema != _SCHEMA:
        raise TypeError("it has other columns")


def _changed(root: str, paths: Sequence[str], sizes: NDArray[np.int64]) -> list[int]:
    """The files that have another size than `sizes`, as far as looked up in time."""
    return list(_differing(root, paths, sizes, time.monotonic() + _SECONDS))


def _differing(
    root: str, paths: Sequence[str], sizes: NDArray[np.int64], end: float
) -> Iterator[int]:
    for place in np.flatnonzero(sizes >= 0).tolist():
        if time.monotonic() > end:
            return
        if wrong_size(Path(root, paths[place]), int(sizes[place])):
            yield place
