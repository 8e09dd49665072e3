"""The index of a packed split: one row per sample, in a Parquet file."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from arro3.core import Array, ChunkedArray, DataType, Field, RecordBatch, RecordBatchReader, Schema
from arro3.io import write_parquet
from numpy.typing import NDArray

from entry_point.contract.whole_file import whole_file
from entry_point.data.errors import DataError
from entry_point.data.sources.dataset_description import DESCRIPTION, Description
from entry_point.data.sources.label_kind import (
    KINDS,
    Label,
    arrow_lists,
    arrow_type,
    fill,
    lists_of,
)
from entry_point.data.sources.parquet import parquet_batches

INDEX = "index.parquet"
_ROWS = 65536  # per read

# The Arrow type and, for numbers, the numpy type. The label's are those of the kind `class`.
COLUMNS: dict[str, tuple[DataType, Any]] = {
    "key": (DataType.string(), None),  # <class>/<name>; the members are <key>.jpg and <key>.cls
    "label": (DataType.int32(), np.int32),  # position in dataset.json's classes
    "shard": (DataType.int32(), np.int32),  # position in the split's list of shards
    "offset": (DataType.int64(), np.int64),  # of the JPEG's first byte in the shard
    "length": (DataType.int64(), np.int64),  # of the JPEG in bytes
    "height": (DataType.int32(), np.int32),  # of the stored pixels, before orientation
    "width": (DataType.int32(), np.int32),
    "orientation": (DataType.int8(), np.int8),  # EXIF, 1 to 8
    "interval": (DataType.int32(), np.int32),  # MCUs between restart markers, 0 for none
    "crc32": (DataType.uint32(), np.uint32),  # of the JPEG's bytes
    "digest": (DataType.uint64(), np.uint64),  # BLAKE2b (8 bytes) of the source file
}

Rows = dict[str, Sequence[Any] | NDArray[Any]]
"""A chunk of rows, by column."""


def _schema(kind: str) -> Schema:
    types = {name: arrow for name, (arrow, _) in COLUMNS.items()} | {"label": arrow_type(kind)}
    return Schema([Field(name, arrow, nullable=False) for name, arrow in types.items()])


class Index:
    """The columns needed to read a split: 37 bytes of memory per sample, plus the keys if used.

    Of the kinds `labels` and `numbers`, `label` is float32 (samples, outputs).
    """

    COLUMNS = ("label", "shard", "offset", "length", "height", "width", "orientation", "crc32")

    def __init__(self, columns: dict[str, NDArray[Any]], file: Path, kind: str) -> None:
        self._columns, self._file, self._kind = columns, file, kind

    def __len__(self) -> int:
        return len(self._columns["label"])

    def __getstate__(self) -> dict[str, Any]:
        """Without the keys: the receiving process reads them from the file if it needs them."""
        return {"_columns": self._columns, "_file": self._file, "_kind": self._kind}

    @cached_property
    def _keys(self) -> ChunkedArray:
        return ChunkedArray([batch["key"] for batch in _batches(self._file, self._kind)])

    def __getitem__(self, column: str) -> NDArray[Any]:
        """A numeric column."""
        return self._columns[column]

    def label(self, row: int) -> Label:
        """The sample's label."""
        value = self._columns["label"][row]
        if value.ndim == 0:
            return int(value)
        return value.tolist() if self._kind == "numbers" else np.flatnonzero(value).tolist()

    def key(self, row: int) -> str:
        return str(self._keys[row].as_py())


def write_index(folder: Path, chunks: Iterable[Rows], kind: str = "class") -> int:
    """Write a split's index chunk by chunk. Returns the file's CRC-32."""
    batches: Iterable[RecordBatch] = (_record_batch(rows, kind) for rows in chunks)
    with whole_file(folder / INDEX) as file:
        sink = _Sink(file)
        write_parquet(RecordBatchReader.from_batches(_schema(kind), batches), cast(BinaryIO, sink))
        if sink.error is not None:
            raise sink.error
    return _checksum(folder / INDEX)


class _Sink:
    """Keeps the error of a failed write (full disk): an exception in `write` ends the process."""

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
        """`whole_file` flushes."""


def read_index(root: Path, description: Description, name: str) -> Index:
    """The split's index, checked against the description. Raises DataError."""
    file, split = _checked_file(root, description, name), description.splits[name]
    try:
        columns = {name: np.empty(split.samples, COLUMNS[name][1]) for name in Index.COLUMNS}
        if description.kind != "class":
            columns["label"] = np.empty((split.samples, len(description.classes)), np.float32)
    except (MemoryError, ValueError) as error:
        raise DataError(f"{file}: no memory for {split.samples} samples ({error})") from error
    end = 0
    for batch in _batches(file, description.kind):
        start, end = end, end + batch.num_rows
        if end <= split.samples:
            part = {name: column[start:end] for name, column in columns.items()}
            _copy(batch, part, description.kind, file)
    if end != split.samples:
        raise DataError(
            f"{file} has {end} rows, but {DESCRIPTION} lists {split.samples} samples: pack again"
        )
    return Index(columns, file, description.kind)


def _copy(batch: RecordBatch, columns: dict[str, NDArray[Any]], kind: str, file: Path) -> None:
    for name, column in columns.items():
        if column.ndim == 1:
            column[:] = batch[name].to_numpy()
            continue
        try:
            fill(column, kind, batch[name])
        except ValueError as error:
            raise DataError(f"{file} is damaged ({error}): pack the dataset again") from error


def read_rows(root: Path, description: Description, name: str) -> Iterator[Rows]:
    """The rows of a split's index in chunks. Raises DataError before the first one is read."""
    batches = _batches(_checked_file(root, description, name), description.kind)
    return (_rows(batch, description.kind) for batch in batches)


def _rows(batch: RecordBatch, kind: str) -> Rows:
    rows: Rows = {name: batch[name].to_pylist() for name in COLUMNS if name != "label"}
    label = batch["label"]
    return rows | {"label": label.to_pylist() if kind == "class" else lists_of(label)}


def _checked_file(root: Path, description: Description, name: str) -> Path:
    """The split's index file, after a check of its CRC-32."""
    if name not in description.splits:
        raise DataError(f"{root} has no split {name}, only {', '.join(description.splits)}")
    file = root / name / INDEX
    if not file.is_file():
        raise DataError(f"{file} is missing: copy it again or pack the dataset again")
    if _checksum(file) != description.splits[name].index_crc32:
        raise DataError(f"{file} is damaged, its checksum differs: copy it again or pack again")
    return file


def read_digests(folder: Path) -> NDArray[np.uint64]:
    """The column `digest` of a split's index; reads no other column into memory."""
    batches = _batches(folder / INDEX)
    parts = (np.asarray(batch["digest"].to_numpy(), np.uint64) for batch in batches)
    return np.concatenate([np.empty(0, np.uint64), *parts])


def read_keys(folder: Path) -> Iterator[tuple[str, int]]:
    """The key and the digest of each row of a split's index."""
    for batch in _batches(folder / INDEX):
        yield from zip(batch["key"].to_pylist(), batch["digest"].to_pylist(), strict=True)


def _batches(file: Path, kind: str | None = None) -> Iterator[RecordBatch]:
    """The rows of an index file, of any kind or of this one.

    Raises DataError if it is not an intact index.
    """

    def check(schema: Schema) -> None:
        if not any(schema == _schema(each) for each in ([kind] if kind else KINDS)):
            raise TypeError("it has other columns")

    return parquet_batches(file, _ROWS, check, "pack the dataset again")


def _checksum(file: Path) -> int:
    checksum = 0
    with file.open("rb") as opened:
        while part := opened.read(1 << 20):
            checksum = zlib.crc32(part, checksum)
    return checksum


def _record_batch(rows: Rows, kind: str) -> RecordBatch:
    arrays = [
        arrow_lists(kind, rows[name]) if name == "label" and kind != "class" else _array(rows, name)
        for name in COLUMNS
    ]
    return RecordBatch.from_arrays(arrays, schema=_schema(kind))


def _array(rows: Rows, name: str) -> Array:
    arrow, number = COLUMNS[name]
    if number is None or len(rows[name]) == 0:  # arro3 0.8 rejects empty numpy arrays
        return Array(list(rows[name]), type=arrow)
    return Array.from_numpy(np.asarray(rows[name], dtype=number))
