"""Reads columns of a CSV, TSV, Parquet or JSON lines file, and names the row that is wrong.

polars reads CSV and Parquet. It fills up the short rows of a CSV and does not say which row it
refuses: Python's csv reads the file again then. JSON lines are decoded line by line, because polars
turns cells of different types into text.
"""

from __future__ import annotations

import csv
import os
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from entry_point.contract.printable import printable
from entry_point.data.errors import DataError
from entry_point.data.no_collection import no_collection

MOST_ROWS = 1 << 24
"""Of a table. ImageNet-21k has 14 million; a Parquet file of 100 kB can have any number."""
MOST_TEXT = 1 << 30
"""Bytes in a column of text. A Parquet file stores a cell of 1 MB that repeats only once."""
METADATA = "-metadata"
"""SageMaker's augmented manifest describes the attribute `x` in `x-metadata`."""
_TYPES = {str: "text", int: "a number", float: "a number", bool: "true or false", list: "a list"}
_CHUNK = 1 << 13
"""Rows that are Python objects at the same time."""
_LONGEST_LINE = 1 << 20
_LONGEST_QUOTE = 80


class BadRowError(Exception):
    """`row` counts from 0; the message says what is wrong and what to do."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


def quoted(value: object) -> str:
    """A cell's content in a message: on one line, and not long."""
    text = printable(str(value)[: _LONGEST_QUOTE + 1])
    return repr(text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}...")


class TableFile:
    """A table; its rows count from 1, without the header and blank lines."""

    names: list[str]
    """Its columns."""

    def __init__(self, file: Path) -> None:
        """Raises DataError for a file that is missing, empty, damaged or of another format."""
        if not file.is_file():
            raise DataError(f"{file}: no such table")
        if file.suffix.lower() not in _FORMATS:
            known = ", ".join(_FORMATS)
            raise DataError(f"{file}: must be a table; its name must end in one of {known}")
        if not file.stat().st_size:
            raise DataError(f"{file} is empty: it must hold a table of paths and labels")
        read_names, self._read = _FORMATS[file.suffix.lower()]
        self._file, self.names = file, read_names(file)

    def read(self, columns: Sequence[str]) -> pl.DataFrame:
        """These columns. Raises DataError for a file that cannot be read."""
        file, frame = self._file, self._read(self._file, self.names, columns)
        if frame.is_empty():
            raise DataError(f"{file} holds no rows, only a header")
        _require_few_rows(file, len(frame))
        for column in frame:
            if _text_bytes(column) > MOST_TEXT:
                raise DataError(f"{file}: the column {quoted(column.name)} is larger than 1 GB")
        return frame


def _text_bytes(column: pl.Series) -> int:
    """The bytes of its texts, each time that they occur."""
    items = column.explode() if isinstance(column.dtype, pl.List) else column
    if items.dtype in (pl.Categorical, pl.Enum):
        lengths = items.cat.len_bytes()
    elif items.dtype == pl.String:
        lengths = items.str.len_bytes()
    else:
        return 0
    return int(lengths.cast(pl.UInt64).sum())


def _require_few_rows(file: Path, rows: int) -> None:
    if rows > MOST_ROWS:
        raise DataError(f"{file} has more than {MOST_ROWS:,} rows: remove some")


def _csv_names(file: Path) -> list[str]:
    with _csv_rows(file) as rows:
        for header in rows:
            return [name.strip() for name in header]
    raise DataError(f"{file} has no header: its first line must name the columns")


def _read_csv(file: Path, names: list[str], columns: Sequence[str]) -> pl.DataFrame:
    places = sorted({*map(names.index, columns), len(names) - 1})
    try:
        frame = pl.read_csv(
            file, columns=places, separator=_separator(file), infer_schema=False, glob=False
        )
    except pl.exceptions.PolarsError:
        return _read_csv_by_row(file, names, columns)
    # Short rows and blank lines have null in the last column, as an empty cell has. A row too long
    # by an empty cell is refused, unless it ends the file. So is a quote that nothing closes.
    same = [name.strip() for name in frame.columns] == [names[place] for place in places]
    ends_in_separator = _last_byte(file) == _separator(file).encode()
    if frame[:, -1].has_nulls() or not same or ends_in_separator or _quotes(file) % 2:
        return _read_csv_by_row(file, names, columns)
    frame.columns = [names[place] for place in places]
    return frame.select(pl.col(columns).fill_null(""))


def _read_csv_by_row(file: Path, names: list[str], columns: Sequence[str]) -> pl.DataFrame:
    """Takes ten times as long, and raises DataError for the row that is wrong."""
    places, chunks, done = [names.index(name) for name in columns], list[pl.DataFrame](), 0
    with _csv_rows(file) as rows:
        next(rows)
        while chunk := list(islice(rows, _CHUNK)):
            for row, cells in enumerate(chunk, done + 1):
                if len(cells) != len(names):
                    raise DataError(
                        f"{file}, row {row}: has {len(cells)} cells, but the header has "
                        f"{len(names)}: put cells that contain {_separator(file)!r} into quotes"
                    )
            chosen = {
                name: [cells[place] for cells in chunk]
                for name, place in zip(columns, places, strict=True)
            }
            chunks.append(pl.DataFrame(chosen))
            done += len(chunk)
            _require_few_rows(file, done)
    return pl.concat(chunks) if chunks else pl.DataFrame()


@contextmanager
def _csv_rows(file: Path) -> Iterator[Iterator[list[str]]]:
    """All rows with the header, without blank ones. Raises DataError, which names the line."""
    with file.open(encoding="utf-8-sig", newline="") as text:
        reader = csv.reader(text, delimiter=_separator(file), strict=True)
        try:
            yield filter(None, reader)
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise DataError(
                f"{file} is not UTF-8 after line {reader.line_num} (byte 0x{byte:02x}): save it "
                "as UTF-8"
            ) from error
        except csv.Error as error:
            where = f"{file}, line {reader.line_num}"
            raise DataError(f"{where}: {error}: check the quotes there") from error


def _quotes(file: Path) -> int:
    with file.open("rb") as opened:
        return sum(chunk.count(b'"') for chunk in iter(partial(opened.read, 1 << 20), b""))


def _last_byte(file: Path) -> bytes:
    with file.open("rb") as opened:
        opened.seek(-1, os.SEEK_END)
        return opened.read()


def _separator(file: Path) -> str:
    """A CSV may use semicolons."""
    if file.suffix.lower() == ".tsv":
        return "\t"
    with file.open(encoding="utf-8", errors="replace") as text:
        header = text.readline(_LONGEST_LINE)
    return ";" if ";" in header and "," not in header else ","


def _parquet_names(file: Path) -> list[str]:
    with _damage_named(file):
        scan = pl.scan_parquet(file, glob=False)
        _require_few_rows(file, scan.select(pl.len()).collect().item())
        return scan.collect_schema().names()


def _read_parquet(file: Path, _names: list[str], columns: Sequence[str]) -> pl.DataFrame:
    with _damage_named(file):
        return pl.read_parquet(file, columns=list(columns), glob=False)


@contextmanager
def _damage_named(file: Path) -> Iterator[None]:
    """Raise DataError for what polars raises for a damaged file."""
    try:
        yield
    except (MemoryError, DataError):
        raise
    except BaseException as error:  # a panic in Rust is not an Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = " ".join(str(error).split())
        raise DataError(f"{file} is damaged ({reason}): write it again") from error


def _json_names(file: Path) -> list[str]:
    for row, line in _json_lines(file):
        return list(_json_object(file, row, line))
    raise DataError(f"{file} is empty: it must hold a JSON object per line")


def _read_json_lines(file: Path, _names: list[str], columns: Sequence[str]) -> pl.DataFrame:
    lines, chunks, types = _json_lines(file), list[pl.DataFrame](), dict[str, str]()
    with no_collection():  # it would visit all of torch's objects every few thousand rows
        while chunk := list(islice(lines, _CHUNK)):
            rows = [_json_object(file, row, line) for row, line in chunk]
            try:
                chunks.append(pl.DataFrame([_json_column(rows, name, types) for name in columns]))
            except BadRowError as error:
                row = chunk[error.row][0]
                raise DataError(f"{file}, row {row}: {error}") from error
            _require_few_rows(file, chunk[-1][0])
    return pl.concat(chunks, how="vertical_relaxed")


def _json_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, and their numbers among these."""
    with file.open("rb") as lines:
        lines.seek(len(BOM_UTF8) if lines.read(len(BOM_UTF8)) == BOM_UTF8 else 0)
        yield from enumerate(filter(bytes.strip, lines), 1)


def _json_object(file: Path, row: int, line: bytes) -> dict[str, Any]:
    where = f"{file}, row {row}"
    if len(line) > _LONGEST_LINE:
        raise DataError(f"{where}: is longer than 1 MB")
    try:
        found = msgspec.json.decode(line)
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: is not UTF-8: save it as UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: is not JSON ({error}): write one object per line") from error
    if not isinstance(found, dict):
        raise DataError(f"{where}: is not a JSON object: write one object per line")
    return found


def _json_column(rows: list[dict[str, Any]], name: str, types: dict[str, str]) -> pl.Series:
    """The cells as text or lists of text; `types` holds the columns' types, in words.

    Raises BadRowError for a cell of another type.
    """
    described = name + METADATA
    cells = [_named(row.get(name), row.get(described)) for row in rows]
    if set(map(type, cells)) == {str} and types.setdefault(name, "text") == "text":
        return pl.Series(name, cells)
    for row, cell in enumerate(cells):
        if cell is None:
            continue
        here = _TYPES.get(type(cell), "an object")
        before = types.setdefault(name, here)
        if here != before or here == "an object":
            must = f"but {before} in the rows before: give all one type"
            must = must if here != before else "must be text, a number, or a list of these"
            raise BadRowError(row, f"{quoted(name)} is {quoted(cell)}, {here}, {must}")
        try:
            cells[row] = _texts(cell)
        except ValueError as error:
            raise BadRowError(row, f"{quoted(name)} {error}") from error
    dtypes: dict[str | None, Any] = {None: pl.Null, "a list": pl.List(pl.String)}
    return pl.Series(name, cells, dtypes.get(types.get(name), pl.String))


def _named(value: Any, metadata: Any) -> Any:
    """The names of the classes instead of their numbers where SageMaker's metadata has them."""
    if not isinstance(metadata, dict):
        return value
    if (class_name := metadata.get("class-name")) is not None:
        return class_name
    if not isinstance(names := metadata.get("class-map"), dict):
        return value
    numbers = map(str, value if isinstance(value, list) else [value])
    return [names.get(number, number) for number in numbers]


def _texts(cell: Any) -> str | list[str]:
    """Text of a text, a number, or each of a list. Raises ValueError."""
    if isinstance(cell, list):
        return [_text(each) for each in cell]
    return _text(cell)


def _text(value: Any) -> str:
    if type(value) is str:
        return value
    if type(value) is bool:
        return str(value).lower()
    if type(value) in (int, float):
        return str(value)
    raise ValueError(f"holds {quoted(value)}: must be a list of texts or of numbers")


Read = Callable[[Path, list[str], Sequence[str]], pl.DataFrame]
_FORMATS: dict[str, tuple[Callable[[Path], list[str]], Read]] = {
    ".csv": (_csv_names, _read_csv),
    ".tsv": (_csv_names, _read_csv),
    ".parquet": (_parquet_names, _read_parquet),
    ".jsonl": (_json_names, _read_json_lines),
    ".ndjson": (_json_names, _read_json_lines),
    ".json": (_json_names, _read_json_lines),
    ".manifest": (_json_names, _read_json_lines),
}
