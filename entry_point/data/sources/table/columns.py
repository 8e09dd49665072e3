"""Columns of a table, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from entry_point.data.errors import DataError

Columns = Sequence[Sequence[Any]]
CHUNK = 4096
"""Rows that are Python objects at the same time."""
MOST_ROWS = 1 << 24
"""Of a table. ImageNet-21k has 14 million; a Parquet file of 100 kB can have any number."""
METADATA = "-metadata"
"""SageMaker's augmented manifest describes the attribute `x` in `x-metadata`."""


def require_few_rows(file: Path, rows: int) -> None:
    """Raise DataError for a table that has more than MOST_ROWS."""
    if rows > MOST_ROWS:
        raise DataError(f"{file} has more than {MOST_ROWS:,} rows: remove some")


class TableFile(Protocol):
    """A table; its rows count from 1, without the header."""

    names: list[str]
    """Its columns."""

    def chunks(self, columns: Sequence[str]) -> Iterator[Columns]:
        """The values of these columns. Raises DataError for a file that is damaged."""
        ...
