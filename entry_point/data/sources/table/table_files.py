"""Reads columns of a table, chunk by chunk.

The readers are those that say which row is wrong: Python's for text, Arrow's for Parquet.
"""

from __future__ import annotations

import csv
import json
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, cast

from arro3.core import Array, Schema

from entry_point.data.errors import DataError
from entry_point.data.sources.parquet import parquet_batches
from entry_point.data.sources.table.bad_row import quoted

METADATA = "-metadata"
"""SageMaker's augmented manifest describes the attribute `x` in `x-metadata`."""
Columns = Sequence[Sequence[Any]]
CHUNK = 16384
"""Rows that are Python objects at the same time."""

_LONGEST_LINE = 1 << 20


class TableFile(Protocol):
    """A table; its rows count from 1, without the header."""

    names: list[str]
    """Its columns."""

    def chunks(self, columns: Sequence[str]) -> Iterator[Columns]:
        """The values of these columns. Raises DataError for a file that is damaged."""
        ...


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
        with self._rows() as rows:
            next(rows)
            done = 0
            while chunk := list(islice(rows, CHUNK)):
                self._require_width(chunk, done)
                cells = list(zip(*chunk, strict=True))
                yield [cells[place] for place in places]
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
    def _rows(self) -> Iterator[Iterator[list[str]]]:
        """All rows and the header, without blank lines."""
        with self._file.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.reader(lines, delimiter=self._delimiter, strict=True)
            try:
                yield filter(None, reader)
            except UnicodeDecodeError as error:
                byte = error.object[error.start]
                raise DataError(
                    f"{self._file} is not UTF-8 after line {reader.line_num} (byte 0x{byte:02x}): "
                    "save it as UTF-8"
                ) from error
            except csv.Error as error:
                where = f"{self._file}, line {reader.line_num}"
                raise DataError(f"{where}: {error}: check the quotes there") from error


class JsonLinesFile:
    """One JSON object per line."""

    def __init__(self, file: Path) -> None:
        self._file = file
        first = next(self._records(1), None)
        if first is None:
            raise DataError(f"{file} is empty: it must hold a JSON object per line")
        self.names = list(first[0])

    def chunks(self, columns: Sequence[str]) -> Iterator[Columns]:
        done = 0
        for chunk in self._records(CHUNK):
            yield [self._column(chunk, name, done) for name in columns]
            done += len(chunk)

    def _column(self, records: list[dict[str, Any]], name: str, done: int) -> list[Any]:
        metadata = name + METADATA
        try:
            if metadata in self.names:
                return [_named(record[name], record.get(metadata)) for record in records]
            return [record[name] for record in records]
        except KeyError:
            at = next(i for i, record in enumerate(records) if name not in record)
            raise DataError(f"{self._file}, row {done + at + 1}: has no {quoted(name)}") from None

    def _records(self, size: int) -> Iterator[list[dict[str, Any]]]:
        done = 0
        with self._file.open("rb") as file:
            file.seek(len(BOM_UTF8) if file.read(len(BOM_UTF8)) == BOM_UTF8 else 0)
            lines = filter(bytes.strip, file)
            while chunk := list(islice(lines, size)):
                yield self._parsed(chunk, done)
                done += len(chunk)

    def _parsed(self, lines: list[bytes], done: int) -> list[dict[str, Any]]:
        """All lines at once, which takes a quarter of the time; one by one to find a bad one."""
        records: Any = None
        with suppress(ValueError, RecursionError):
            records = json.loads(b"[%b]" % b",".join(lines))
        whole = isinstance(records, list) and len(records) == len(lines)
        if whole and set(map(type, records)) == {dict} and max(map(len, lines)) <= _LONGEST_LINE:
            return list(records)
        return [self._record(line, done + i + 1) for i, line in enumerate(lines)]

    def _record(self, line: bytes, row: int) -> dict[str, Any]:
        where = f"{self._file}, row {row}"
        if len(line) > _LONGEST_LINE:
            raise DataError(f"{where}: is longer than 1 MB")
        try:
            record = json.loads(line)
        except UnicodeDecodeError as error:
            raise DataError(f"{where}: is not UTF-8: save it as UTF-8") from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: is not JSON ({error}): write one object per line") from error
        if not isinstance(record, dict):
            raise DataError(f"{where}: is not a JSON object: write one object per line")
        return record


def _named(value: Any, metadata: Any) -> Any:
    """The names of the classes that SageMaker's metadata gives for their numbers."""
    if not isinstance(metadata, dict):
        return value
    if isinstance(names := metadata.get("class-map"), dict):
        numbers = value if isinstance(value, list) else [value]
        return [names.get(str(number), number) for number in numbers]
    return metadata.get("class-name", value)


class ParquetTable:
    """A Parquet file; lists and categories are columns like others."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.names: list[str] = []
        for _ in parquet_batches(file, 1, self._keep_names, "write it again"):
            break

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
