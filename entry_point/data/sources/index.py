"""The optimised data set's files: dataset.json, an index per split (Parquet), tar shards.

    dataset.json             classes, and for each split its shards and their sizes
    report.json              what packing did with every source file
    train/index.parquet      a row per sample, in the order of the shards
    train/shard-00-000000.tar

Any tool can read them: tar and WebDataset the shards, pandas, DuckDB or Arrow the index.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from arro3.core import Array, ChunkedArray, DataType, Field, RecordBatch, RecordBatchReader, Schema
from arro3.io import read_parquet, write_parquet
from numpy.typing import NDArray

from entry_point.contract.whole_file import whole_file, write_text
from entry_point.data.errors import DataError

DESCRIPTION = "dataset.json"
INDEX = "index.parquet"
VERSION = 1
# Rows read at a time. arro3 0.8, the newest for Python 3.10, knows only its own 1024.
_BATCH = {"batch_size": 65536} if sys.version_info >= (3, 11) else {}

# Arrow type and, for numbers, numpy's.
COLUMNS: dict[str, tuple[DataType, Any]] = {
    "key": (DataType.string(), None),  # <class>/<name>; the members are <key>.jpg and <key>.cls
    "label": (DataType.int32(), np.int32),  # place in dataset.json's classes
    "shard": (DataType.int32(), np.int32),  # place in the split's list of shards
    "offset": (DataType.int64(), np.int64),  # of the JPEG's first byte in the shard
    "length": (DataType.int64(), np.int64),  # of the JPEG in bytes
    "height": (DataType.int32(), np.int32),  # of the stored pixels, before orientation
    "width": (DataType.int32(), np.int32),
    "orientation": (DataType.int8(), np.int8),  # EXIF, 1 to 8
    "interval": (DataType.int32(), np.int32),  # MCUs between restart markers, 0 for none
    "crc32": (DataType.uint32(), np.uint32),  # of the JPEG's bytes
    "digest": (DataType.uint64(), np.uint64),  # BLAKE2b of 8 bytes, of the source file
}
_SCHEMA = Schema([Field(name, kind, nullable=False) for name, (kind, _) in COLUMNS.items()])

Rows = dict[str, Sequence[Any] | NDArray[Any]]
"""Some rows, column by column."""


@dataclass(frozen=True)
class Shard:
    file: str
    """Name in the split's folder."""
    bytes: int
    samples: int


@dataclass(frozen=True)
class Split:
    shards: list[Shard]
    index_crc32: int
    """Of the index file, so that a damaged one is never parsed."""

    @property
    def samples(self) -> int:
        return sum(shard.samples for shard in self.shards)


@dataclass(frozen=True)
class Description:
    """What dataset.json says."""

    classes: list[str]
    splits: dict[str, Split]
    made_from: str
    """Fingerprint of the source's listing and the options."""
    format: str = "shards"
    version: int = VERSION


class Index:
    """What reading a split takes, in memory: 37 bytes a sample; and the keys once one is wanted."""

    COLUMNS = ("label", "shard", "offset", "length", "height", "width", "orientation", "crc32")

    def __init__(self, columns: dict[str, NDArray[Any]], file: Path) -> None:
        self._columns, self._file = columns, file

    def __len__(self) -> int:
        return len(self._columns["label"])

    def __getstate__(self) -> dict[str, Any]:
        """Without the keys: another process reads them again if it has to name a sample."""
        return {"_columns": self._columns, "_file": self._file}

    @cached_property
    def _keys(self) -> ChunkedArray:
        return ChunkedArray([batch["key"] for batch in read_parquet(self._file, **_BATCH)])

    def __getitem__(self, column: str) -> NDArray[Any]:
        """A column of numbers."""
        return self._columns[column]

    def key(self, row: int) -> str:
        return str(self._keys[row].as_py())


def write_description(root: Path, description: Description) -> None:
    text = json.dumps(asdict(description), indent=1, ensure_ascii=False)
    write_text(root / DESCRIPTION, text)


def read_description(root: Path) -> Description:
    """Raises DataError for anything that is no finished data set of this version."""
    file = root / DESCRIPTION
    try:
        content: dict[str, Any] = json.loads(file.read_text("utf-8"))
        if content["version"] != VERSION:
            raise DataError(f"{file} is of version {content['version']}, not {VERSION}: pack again")
        content["splits"] = {
            name: Split([Shard(**shard) for shard in split["shards"]], split["index_crc32"])
            for name, split in content["splits"].items()
        }
        return Description(**content)
    except FileNotFoundError as error:
        raise DataError(
            f"{root} is no optimised data set: it has no {DESCRIPTION}; `make dataset` makes one"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} is damaged ({error}): pack again") from error


def write_index(folder: Path, parts: Iterable[Rows]) -> int:
    """Write a split's index, a part at a time; returns the file's CRC-32."""
    batches: Iterable[RecordBatch] = (_record_batch(rows) for rows in parts)
    if sys.version_info < (3, 11):
        # Nor does it write a stream: there the whole index is in memory for a moment.
        batches = list(batches)
    with whole_file(folder / INDEX) as file:
        sink = _Sink(file)
        write_parquet(RecordBatchReader.from_batches(_SCHEMA, batches), cast(BinaryIO, sink))
        if sink.error is not None:
            raise sink.error
    return _checksum(folder / INDEX)


class _Sink:
    """Keeps the error of a write, such as a full disk's, which would end the process."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            self._file.write(data)
        except OSError as error:
            self.error = error
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def flush(self) -> None:
        """All is flushed when the file is finished."""


def read_index(root: Path, description: Description, name: str) -> Index:
    """The split's index, checked against the description. Raises DataError."""
    file, split = _sound_file(root, description, name), description.splits[name]
    columns = {name: np.empty(split.samples, COLUMNS[name][1]) for name in Index.COLUMNS}
    end = 0
    for batch in read_parquet(file, **_BATCH):
        start, end = end, end + batch.num_rows
        if end <= split.samples:
            for name, column in columns.items():
                column[start:end] = batch[name].to_numpy()
    if end != split.samples:
        raise DataError(f"{file} has {end} rows, {DESCRIPTION} says {split.samples}")
    return Index(columns, file)


def read_rows(root: Path, description: Description, name: str) -> Iterator[Rows]:
    """The rows of a split's index, a part at a time; the file is checked at once.

    Raises DataError.
    """
    batches = read_parquet(_sound_file(root, description, name), **_BATCH)
    return ({column: batch[column].to_pylist() for column in COLUMNS} for batch in batches)


def _sound_file(root: Path, description: Description, name: str) -> Path:
    """The split's index file, which is what was written."""
    if name not in description.splits:
        raise DataError(f"{root} has no split {name}, only {', '.join(description.splits)}")
    file = root / name / INDEX
    if not file.is_file():
        raise DataError(f"{file} is missing: copy it again or pack the data set again")
    if _checksum(file) != description.splits[name].index_crc32:
        raise DataError(f"{file} is damaged, its checksum differs: copy it again or pack again")
    return file


def read_column(folder: Path, column: str) -> NDArray[Any]:
    """One column of numbers of a split's index, without the others in memory."""
    kind = COLUMNS[column][1]
    batches = read_parquet(folder / INDEX, **_BATCH)
    parts = (np.asarray(batch[column].to_numpy(), kind) for batch in batches)
    return np.concatenate([np.empty(0, kind), *parts])


def read_keys(folder: Path, column: str) -> Iterator[tuple[str, Any]]:
    """The key and another column of each row of a split's index, one after the other."""
    for batch in read_parquet(folder / INDEX, **_BATCH):
        yield from zip(batch["key"].to_pylist(), batch[column].to_pylist(), strict=True)


def _checksum(file: Path) -> int:
    checksum = 0
    with file.open("rb") as opened:
        while part := opened.read(1 << 20):
            checksum = zlib.crc32(part, checksum)
    return checksum


def _record_batch(rows: Rows) -> RecordBatch:
    # arro3 0.8 takes no empty array of numpy's.
    arrays = [
        Array(list(rows[column]), type=arrow)
        if kind is None or len(rows[column]) == 0
        else Array.from_numpy(np.asarray(rows[column], dtype=kind))
        for column, (arrow, kind) in COLUMNS.items()
    ]
    return RecordBatch.from_arrays(arrays, schema=_SCHEMA)
