"""Writes the index of a packed split, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from arro3.core import Array, RecordBatch, RecordBatchReader
from arro3.io import write_parquet

from entry_point.contract.whole_file import whole_file
from entry_point.data.sources.label_kind import arrow_lists
from entry_point.data.sources.packed.index import (
    COLUMNS,
    INDEX,
    Rows,
    checksum_of,
    index_lengths,
    schema_of,
)
from entry_point.data.sources.side_indexes import SIDE_INDEXES, SideIndexWriter


def write_index(folder: Path, chunks: Iterable[Rows], kind: str = "class") -> tuple[int, int]:
    """Write a split's index, and its side indexes if it has any.

    Returns the CRC-32 of both files, 0 without side indexes.
    """
    side_indexes = folder / SIDE_INDEXES
    with whole_file(side_indexes) as side_file, whole_file(folder / INDEX) as file:
        sink, side_sink = _Sink(file), _Sink(side_file)
        side = SideIndexWriter(cast(BinaryIO, side_sink))
        batches: Iterable[RecordBatch] = (_record_batch(rows, kind, side) for rows in chunks)
        write_parquet(
            RecordBatchReader.from_batches(schema_of(kind), batches), cast(BinaryIO, sink)
        )
        for error in (sink.error, side_sink.error):
            if error is not None:
                raise error
    if not side.crc32:
        side_indexes.unlink()
    return checksum_of(folder / INDEX), side.crc32


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


def _record_batch(rows: Rows, kind: str, side: SideIndexWriter) -> RecordBatch:
    arrays = [
        arrow_lists(kind, rows[name]) if name == "label" and kind != "class" else _array(rows, name)
        for name in COLUMNS
    ]
    indexes = cast(Sequence[bytes], rows.get("index", [b""] * len(rows["key"])))
    arrays.append(index_lengths(side.write(indexes)))
    return RecordBatch.from_arrays(arrays, schema=schema_of(kind))


def _array(rows: Rows, name: str) -> Array:
    arrow, number = COLUMNS[name]
    if number is None or len(rows[name]) == 0:  # arro3 0.8 rejects empty numpy arrays
        return Array(list(rows[name]), type=arrow)
    return Array.from_numpy(np.asarray(rows[name], dtype=number))
