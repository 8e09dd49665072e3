"""Writes the index of a packed split, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

import numpy as np
from arro3.core import Array, RecordBatch

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
from entry_point.data.sources.parquet import write_batches
from entry_point.data.sources.side_indexes import SIDE_INDEXES, SideIndexWriter


def write_index(folder: Path, chunks: Iterable[Rows], kind: str = "class") -> tuple[int, int]:
    """Write a split's index, and its side indexes if it has any.

    Returns the CRC-32 of both files, 0 without side indexes.
    """
    side_indexes = folder / SIDE_INDEXES
    with whole_file(side_indexes) as side_file, whole_file(folder / INDEX) as file:
        side = SideIndexWriter(side_file)
        batches = (_record_batch(rows, kind, side) for rows in chunks)
        write_batches(file, schema_of(kind), batches)
        side.finish()
    if not side.crc32:
        side_indexes.unlink()
    return checksum_of(folder / INDEX), side.crc32


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
