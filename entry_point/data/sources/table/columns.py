"""Columns of a table, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

Columns = Sequence[Sequence[Any]]
CHUNK = 4096
"""Rows that are Python objects at the same time."""
METADATA = "-metadata"
"""SageMaker's augmented manifest describes the attribute `x` in `x-metadata`."""


class TableFile(Protocol):
    """A table; its rows count from 1, without the header."""

    names: list[str]
    """Its columns."""

    def chunks(self, columns: Sequence[str]) -> Iterator[Columns]:
        """The values of these columns. Raises DataError for a file that is damaged."""
        ...
