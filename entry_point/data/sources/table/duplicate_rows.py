"""Rows of a table that name the same image."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from entry_point.data.sources.table.bad_row import BadRowError, quoted
from entry_point.data.sources.table.columns import CHUNK
from entry_point.data.sources.table.label_encoder import Labels
from entry_point.data.sources.table.path_list import PathList


def repeated_rows(
    paths: PathList, checksums: NDArray[np.uint32], labels: Labels, splits: NDArray[np.int8]
) -> NDArray[np.int64]:
    """Rows that repeat an earlier one, ascending.

    Raises BadRowError, with the row's number in the table, if the same image has different labels
    or is in different splits.
    """
    order = np.argsort(checksums, kind="stable")
    # Few other paths have the same checksum.
    same = np.flatnonzero(checksums[order][1:] == checksums[order][:-1]) + 1
    rows = np.unique(np.concatenate([order[same - 1], order[same]]))
    first_of: dict[str, int] = {}
    firsts = np.array([first_of.setdefault(paths[row], row) for row in rows.tolist()], np.int64)
    rows, firsts = rows[rows != firsts], firsts[rows != firsts]
    _check_labels(paths, rows, firsts, labels.values)
    if len(other := np.flatnonzero(splits[firsts] != splits[rows])):
        row, first = int(rows[other[0]]), int(firsts[other[0]])
        reason = f"{quoted(paths[row])} is in another split in row {first + 1}: remove one"
        raise BadRowError(row, reason)
    return rows


def _check_labels(
    paths: PathList, rows: NDArray[np.int64], firsts: NDArray[np.int64], values: NDArray[Any]
) -> None:
    for start in range(0, len(rows), CHUNK):
        here = slice(start, start + CHUNK)
        different = values[rows[here]] != values[firsts[here]]
        found = np.flatnonzero(different.reshape(len(different), -1).any(axis=1))
        if len(found):
            row, first = int(rows[here][found[0]]), int(firsts[here][found[0]])
            raise BadRowError(
                row,
                f"{quoted(paths[row])} has another label than in row {first + 1}: keep one; a list "
                "of labels goes into one cell",
            )
