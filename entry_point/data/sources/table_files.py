"""Reads columns of a CSV, TSV, Parquet or JSON lines file as text, and names a row that is wrong.

A CSV, TSV, .txt or .lst whose first line names an image has no header: see `_list_columns`. Rows
count from 1, without the header and blank lines.
"""

from __future__ import annotations

import csv
import os
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import msgspec
import polars as pl

from entry_point.data.errors import DataError
from entry_point.data.sources.labels import MUST_BE, quoted, text_column
from entry_point.data.sources.rows import IMAGE_SUFFIXES
from entry_point.data.sources.splits import split_called
from entry_point.data.sources.table_folder import IMAGE_END, LIST_SUFFIXES, TABLE_SUFFIXES

METADATA = "-metadata"
"""SageMaker's augmented manifest describes the attribute `x` in `x-metadata`."""
_CSV = (".csv", ".tsv", *LIST_SUFFIXES)
_LONGEST_CELL = 1 << 23
"""Characters. A quote that is never closed makes one cell of all that follows."""
_UNIT = "\x1f"
"""ASCII's separator of cells, between those that `_words` finds."""
_OBJECTS = "write one object per line"


def column_names(file: Path) -> list[str]:
    """Returns the columns. Raises DataError for a file that is missing, damaged or of another
    format."""
    suffix = file.suffix.lower()
    if suffix not in (*TABLE_SUFFIXES, *LIST_SUFFIXES):
        known = ", ".join((*TABLE_SUFFIXES, *LIST_SUFFIXES))
        raise DataError(f"{file}: must be a table; its name must end in one of {known}")
    if not file.is_file():
        raise DataError(f"{file}: no such table")
    if suffix == ".parquet":
        with _damage_named(file):
            return list(pl.read_parquet_schema(file))
    names = next(_csv_rows(file), []) if suffix in _CSV else [*next(_json_objects(file), {})]
    if not names:
        raise DataError(f"{file} is empty: it must hold a table of paths and labels")
    return names


def has_header(file: Path) -> bool:
    """Returns whether the file names its columns itself. Raises DataError."""
    if file.suffix.lower() not in _CSV:
        return True
    with file.open(encoding="utf-8-sig", newline="") as text:
        return not _list_columns(file, next(filter(None, _csv_reader(file, text)), []))


def read_columns(file: Path, columns: list[str]) -> pl.DataFrame:
    """Some of the columns, as text or lists of text.

    Raises DataError for a file that is damaged, and OSError if its disk fails.
    """
    suffix = file.suffix.lower()
    if suffix == ".parquet":
        with _damage_named(file):
            frame = pl.read_parquet(file, columns=columns, glob=False)
    elif suffix in _CSV:
        frame = _read_csv(file, columns)
    else:
        frame = _read_json_lines(file, columns)
    if frame.is_empty():
        raise DataError(f"{file} holds no rows, only a header")
    return pl.DataFrame([text_column(file, column) for column in frame])


@contextmanager
def _damage_named(file: Path) -> Iterator[None]:
    """Raise DataError for what polars raises for a damaged file."""
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{file} is damaged ({reason}): write it again") from error
    except OSError as error:  # polars has the number only in the text
        if not (number := re.search(r"\(os error (\d+)\)", str(error))):
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(file)) from error


def _read_csv(file: Path, columns: list[str]) -> pl.DataFrame:
    rows = _csv_rows(file)
    names = next(rows)
    cells: dict[str, list[str]] = {name: [] for name in columns}
    places = {name: place for place, name in reversed([*enumerate(names)])}
    wanted = [(places[name], column) for name, column in cells.items()]
    for row, found in enumerate(rows, 1):
        if len(found) != len(names):
            raise DataError(
                f"{file}, row {row}: has {len(found)} cells, but the header has {len(names)}: put "
                f"cells that contain {_separator(file)!r} into quotes"
            )
        for place, column in wanted:
            column.append(found[place])
    return pl.DataFrame(cells, dict.fromkeys(columns, pl.String))


def _csv_rows(file: Path, errors: str = "strict") -> Iterator[list[str]]:
    """Yields the names of the columns and all rows, without blank ones.

    Raises DataError, which names the row.
    """
    csv.field_size_limit(_LONGEST_CELL)
    row = -1
    with file.open(encoding="utf-8-sig", errors=errors, newline="") as text:
        reader = _csv_reader(file, text)
        try:
            for cells in filter(None, reader):
                row += 1
                if row == 0 and (names := _list_columns(file, cells)):
                    yield names
                    row = 1
                yield cells if row else [name.strip() for name in cells]
        except UnicodeDecodeError as error:  # text is decoded ahead of the rows
            texts = map("".join, _csv_rows(file, "surrogateescape"))
            row = next(i for i, text in enumerate(texts) if re.search("[\udc80-\udcff]", text))
            raise DataError(f"{_where(file, row)}: is not UTF-8: save it as UTF-8") from error
        except csv.Error as error:
            where = f"{_where(file, row + 1)} (line {reader.line_num})"
            raise DataError(f"{where}: {error}: check the quotes there") from error


def _where(file: Path, row: int) -> str:
    return f"{file}, {f'row {row}' if row else 'header'}"


def _csv_reader(file: Path, text: TextIO) -> Any:
    lines: Iterable[str] = text
    separator, is_list = _separator(file), file.suffix.lower() in LIST_SUFFIXES
    if separator == " ":
        lines, separator = (_UNIT.join(_words(line)) for line in text), _UNIT
    if is_list and separator != ",":
        return csv.reader(lines, delimiter=separator, strict=True, quoting=csv.QUOTE_NONE)
    return csv.reader(lines, delimiter=separator, strict=True)


def _separator(file: Path) -> str:
    """A CSV may use semicolons, and a list also tabs or blanks."""
    suffix = file.suffix.lower()
    if suffix == ".tsv":
        return "\t"
    with file.open(encoding="utf-8", errors="replace") as text:
        header = text.readline()
    known, usual = ("\t,;", " ") if suffix in LIST_SUFFIXES else (",;\t", ",")
    return next((each for each in known if each in header), usual)


def _words(line: str) -> list[str]:
    """Returns the cells of a line between blanks, such as the path `my cats/0.jpg` and `3`.

    Only the path of an image, which numbers may precede, contains blanks.
    """
    if (end := IMAGE_END.search(line)) is None:
        return line.split()
    head = line[: end.end()].lstrip()
    numbers = re.match(r"(?:[-+.\d]+\s+)*", head)
    assert numbers is not None
    return [*numbers[0].split(), head[numbers.end() :], *line[end.end() :].split()]


def _list_columns(file: Path, first: Sequence[str]) -> list[str]:
    """Returns names for the columns of a list, whose first line is a row; none for a header.

    The first cell that ends as images do is the `path`, a second one the `mask`. One more column is
    the `label`; of several, one that begins with a split is `split`, and others have their number,
    as in `column3`. A .lst begins with an index.
    """
    cells = [cell.strip().lower() for cell in first]
    images = [place for place, cell in enumerate(cells) if cell.endswith(IMAGE_SUFFIXES)]
    if not images:
        return []
    names = dict(zip(images, ("path", "mask"), strict=False))
    if file.suffix.lower() == ".lst" and len(cells) > 2:
        names.setdefault(0, "index")
    left = [place for place in range(len(cells)) if place not in names]
    splits = [place for place in left if split_called(cells[place])]
    if splits and len(left) > 1:
        names[splits[0]] = "split"
        left.remove(splits[0])
    names |= {place: f"column{place + 1}" if left[1:] else "label" for place in left}
    return [names[place] for place in range(len(cells))]


def _read_json_lines(file: Path, columns: list[str]) -> pl.DataFrame:
    """Cells as text or lists of text: polars turns cells of different types into text."""
    cells: dict[str, list[Any]] = {name: [] for name in columns}
    wanted = [(name, name + METADATA, cells[name]) for name in columns]
    for row, found in enumerate(_json_objects(file), 1):
        for name, described, column in wanted:
            cell = found.get(name)
            if isinstance(metadata := found.get(described), dict):
                cell = _class_names(cell, metadata)
            try:
                column.append(cell if type(cell) is str else _text(cell))
            except TypeError as error:
                where = f"{file}, row {row}: {quoted(name)}"
                raise DataError(f"{where} is {quoted(cell)}: {error}") from error
    types: dict[str, Any] = dict.fromkeys(columns, pl.String)
    for name, column in cells.items():
        if list in set(map(type, column)):
            types[name] = pl.List(pl.String)
            cells[name] = [[cell] if type(cell) is str else cell for cell in column]
    return pl.DataFrame(cells, types)


def _json_objects(file: Path) -> Iterator[dict[str, Any]]:
    """Yields the objects of the lines that are not blank."""
    with file.open("rb") as lines:
        for row, line in enumerate(filter(bytes.strip, lines), 1):
            try:
                found = msgspec.json.decode(line.removeprefix(BOM_UTF8))
            except UnicodeDecodeError as error:
                raise DataError(f"{file}, row {row}: is not UTF-8: save it as UTF-8") from error
            except (ValueError, RecursionError) as error:
                wrong = f"is not JSON ({error})"
                raise DataError(f"{file}, row {row}: {wrong}: {_OBJECTS}") from error
            if not isinstance(found, dict):
                raise DataError(f"{file}, row {row}: is not a JSON object: {_OBJECTS}")
            yield found


def _class_names(value: Any, metadata: dict[str, Any]) -> Any:
    """Returns the names of the classes instead of their numbers where SageMaker's metadata has
    them."""
    if (class_name := metadata.get("class-name")) is not None:
        return class_name
    if not isinstance(names := metadata.get("class-map"), dict):
        return value
    numbers = map(str, value if isinstance(value, list) else [value])
    return [names.get(number, number) for number in numbers]


def _text(cell: Any) -> str | list[str] | None:
    """Text of a text, a number, or each of a list. Raises TypeError."""
    if type(cell) is list:
        return [_text_of_one(each) for each in cell]
    return None if cell is None else _text_of_one(cell)


def _text_of_one(value: Any) -> str:
    if type(value) not in (str, bool, int, float):
        raise TypeError(MUST_BE)
    return str(value).lower() if type(value) is bool else str(value)
