"""The index of a packed split: one row per sample, in a Parquet file."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from arro3.core import Array, ChunkedArray, DataType, Field, RecordBatch, Schema
from numpy.typing import NDArray

from entry_point.data.errors import DataError
from entry_point.data.sources.dataset_description import DESCRIPTION, Description
from entry_point.data.sources.file_bytes import read_bytes
from entry_point.data.sources.label_kind import (
    KINDS,
    Label,
    arrow_type,
    fill,
    lists_of,
)
from entry_point.data.sources.parquet import parquet_batches
from entry_point.data.sources.side_indexes import SIDE_INDEXES

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
    "crc32": (DataType.uint32(), np.uint32),  # of the JPEG's bytes
    "digest": (DataType.uint64(), np.uint64),  # BLAKE2b (8 bytes) of the source file
}

INDEX_LENGTH = "index_length"
"""The column of the side indexes' lengths in bytes, 0 for none."""
_INDEX_LENGTH = Field(INDEX_LENGTH, DataType.int32(), nullable=False)

Rows = dict[str, Sequence[Any] | NDArray[Any]]
"""A chunk of rows, by column; `index`, which may be missing, holds the side indexes as bytes."""


def schema_of(kind: str) -> Schema:
    types = {name: arrow for name, (arrow, _) in COLUMNS.items()} | {"label": arrow_type(kind)}
    columns = [Field(name, arrow, nullable=False) for name, arrow in types.items()]
    return Schema([*columns, _INDEX_LENGTH])


class Index:
    """The columns needed to read a split: 41 bytes of memory per sample, plus the keys if used.

    Of the kinds `labels` and `numbers`, `label` is float32 (samples, outputs).
    """

    COLUMNS = (
        *("label", "shard", "offset", "length", "height", "width", "orientation", "crc32"),
        INDEX_LENGTH,
    )

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


def read_index(root: Path, description: Description, name: str) -> Index:
    """The split's index, checked against the description. Raises DataError."""
    file, split = _checked_file(root, description, name), description.splits[name]
    try:
        types = {name: number for name, (_, number) in COLUMNS.items()} | {INDEX_LENGTH: np.int32}
        columns = {name: np.empty(split.samples, types[name]) for name in Index.COLUMNS}
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
    """The rows of a split's index in chunks, with the side indexes.

    Raises DataError before the first one is read.
    """
    file = _checked_file(root, description, name)
    if reason := damage_of_side_indexes(root, description, name):
        raise DataError(f"{reason}: copy it again or pack the dataset again")
    return _rows(_batches(file, description.kind), description.kind, file.parent / SIDE_INDEXES)


def _rows(batches: Iterator[RecordBatch], kind: str, side_indexes: Path) -> Iterator[Rows]:
    place = 0
    for batch in batches:
        rows: Rows = {name: batch[name].to_pylist() for name in COLUMNS if name != "label"}
        label = batch["label"]
        rows["label"] = label.to_pylist() if kind == "class" else lists_of(label)
        lengths = np.asarray(batch[INDEX_LENGTH].to_numpy(), np.int64)
        if total := int(lengths.sum()):
            part = read_bytes(side_indexes, place, total).numpy()
            rows["index"] = [cut.tobytes() for cut in np.split(part, np.cumsum(lengths)[:-1])]
            place += total
        yield rows


def damage_of_side_indexes(root: Path, description: Description, name: str) -> str:
    """How the split's file of side indexes differs from the description; empty if it does not."""
    file, expected = root / name / SIDE_INDEXES, description.splits[name].side_indexes_crc32
    if not expected:
        return ""
    if not file.is_file():
        return f"{file} is missing"
    return "" if checksum_of(file) == expected else f"{file} is damaged, its checksum differs"


def _checked_file(root: Path, description: Description, name: str) -> Path:
    """The split's index file, after a check of its CRC-32."""
    if name not in description.splits:
        raise DataError(f"{root} has no split {name}, only {', '.join(description.splits)}")
    file = root / name / INDEX
    if not file.is_file():
        raise DataError(f"{file} is missing: copy it again or pack the dataset again")
    if checksum_of(file) != description.splits[name].index_crc32:
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

    accepted = [schema_of(each) for each in ([kind] if kind else KINDS)]

    def check(schema: Schema) -> None:
        if schema not in accepted:
            raise TypeError("it has other columns")

    return parquet_batches(file, _ROWS, check, "pack the dataset again")


def index_lengths(lengths: Sequence[int]) -> Array:
    return Array(list(lengths), type=_INDEX_LENGTH.type)


def checksum_of(file: Path) -> int:
    """CRC-32 of a file."""
    checksum = 0
    with file.open("rb") as opened:
        while part := opened.read(1 << 20):
            checksum = zlib.crc32(part, checksum)
    return checksum
