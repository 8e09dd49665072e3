"""Reads columns of a table, chunk by chunk.

The readers are those that say which row is wrong: Python's for CSV, Arrow's for Parquet.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, cast

from arro3.core import Array, Schema

from entry_point.data.errors import DataError
from entry_point.data.sources.parquet import parquet_batches
from entry_point.data.sources.table.columns import CHUNK, Columns, TableFile, require_few_rows
from entry_point.data.sources.table.json_lines import JsonLinesFile
from entry_point.data.sources.table.plain_cells import plain_blocks


def open_table_file(file: Path) -> TableFile:
    """Raises DataError for a file that is missing, empty or of another format."""
    if not file.is_file():
        raise DataError(f"{file}: no such table")
    opener = TABLE_SUFFIXES.get(file.suffix.lower())
    if opener is None:
        known = ", ".join(TABLE_SUFFIXES)
        raise DataError(f"{file}: must be a table; its name must end in one of {known}")
    if not file.stat().st_size:
        raise DataError(f"{file} is empty: it must hold a table of paths and labels")
    return opener(file)


def is_table(path: Path) -> bool:
    """Whether it is a file with the name of a table."""
    return path.suffix.lower() in TABLE_SUFFIXES and path.is_file()


class DelimitedFile:
    """CSV or TSV in UTF-8, with a header; a CSV may use semicolons."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._delimiter = "\t" if file.suffix.lower() == ".tsv" else ","
        header = self._header()
        if self._delimiter == "," and len(header) == 1 and ";" in header[0]:
            self._delimiter = ";"
            header = self._header()
        if not header:
            raise DataError(f"{file} has no header: its first line must name the columns")
        self.names = [name.strip() for name in header]

    def chunks(self, columns: Sequence[str]) -> Iterator[Columns]:
        places = [self.names.index(name) for name in columns]
        width, done, offset = len(self.names), 0, 0
        # Most files are plain to the end, and Python's csv makes a list of each row.
        for cells, end in plain_blocks(self._file, self._delimiter, width):
            cells = cells if offset else cells[width:]
            yield [cells[place::width] for place in places]
            done, offset = done + len(cells) // width, end
        with self._rows(offset, done + 1 if offset else 0) as rows:
            if not offset:
                next(rows)
            while chunk := list(islice(rows, CHUNK)):
                self._require_width(chunk, done)
                transposed = list(zip(*chunk, strict=True))
                yield [transposed[place] for place in places]
                done += len(chunk)

    def _header(self) -> list[str]:
        with self._rows() as rows:
            return next(rows, [])

    def _require_width(self, rows: list[list[str]], done: int) -> None:
        width = len(self.names)
        if set(map(len, rows)) == {width}:
            return
        at = next(i for i, row in enumerate(rows) if len(row) != width)
        raise DataError(
            f"{self._file}, row {done + at + 1}: has {len(rows[at])} cells, but the header has "
            f"{width}: put cells that contain {self._delimiter!r} into quotes"
        )

    @contextmanager
    def _rows(self, offset: int = 0, lines: int = 0) -> Iterator[Iterator[list[str]]]:
        """All rows from the byte `offset` on, without blank ones; `lines` lines lie before it."""
        with self._file.open("rb") as file:
            file.seek(offset)
            text = io.TextIOWrapper(file, "utf-8" if offset else "utf-8-sig", newline="")
            reader = csv.reader(text, delimiter=self._delimiter, strict=True)
            try:
                yield filter(None, reader)
            except UnicodeDecodeError as error:
                byte = error.object[error.start]
                raise DataError(
                    f"{self._file} is not UTF-8 after line {lines + reader.line_num} "
                    f"(byte 0x{byte:02x}): save it as UTF-8"
                ) from error
            except csv.Error as error:
                where = f"{self._file}, line {lines + reader.line_num}"
                raise DataError(f"{where}: {error}: check the quotes there") from error


class ParquetTable:
    """A Parquet file; lists and categories are columns like others."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.names: list[str] = []
        rows = 0
        for batch in parquet_batches(file, CHUNK, self._keep_names, "write it again"):
            require_few_rows(file, rows := rows + batch.num_rows)

    def chunks(self, columns: Sequence[str]) -> Iterator[Columns]:
        for batch in parquet_batches(self._file, CHUNK, self._keep_names, "write it again"):
            yield [_cells(batch[name]) for name in columns]

    def _keep_names(self, schema: Schema) -> None:
        self.names = list(schema.names)


def _cells(column: Array) -> Sequence[Any]:
    return cast(Sequence[Any], column.to_pylist())


TABLE_SUFFIXES: dict[str, Callable[[Path], TableFile]] = {
    ".csv": DelimitedFile,
    ".tsv": DelimitedFile,
    ".parquet": ParquetTable,
    ".jsonl": JsonLinesFile,
    ".ndjson": JsonLinesFile,
    ".json": JsonLinesFile,
    ".manifest": JsonLinesFile,
}
