"""Rows of a table that name the same image."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from entry_point.data.sources.table.bad_row import BadRowError, quoted
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
    first_of: dict[str, int] = {}
    repeated = []
    for row in np.unique(np.concatenate([order[same - 1], order[same]])).tolist():
        path = paths[row]
        first = first_of.setdefault(path, row)
        if first == row:
            continue
        if not np.array_equal(labels.values[first], labels.values[row]):
            raise BadRowError(
                row,
                f"{quoted(path)} has another label than in row {first + 1}: keep one; a list of "
                "labels goes into one cell",
            )
        if splits[first] != splits[row]:
            reason = f"{quoted(path)} is in another split in row {first + 1}: remove one"
            raise BadRowError(row, reason)
        repeated.append(row)
    return np.array(repeated, dtype=np.int64)
