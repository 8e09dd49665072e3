"""Reads columns of a CSV, TSV, Parquet or JSON lines file as text.

A CSV, TSV, .txt or .lst whose first line contains the path of an image has no header, see
`_list_columns`. Blank lines are skipped.
"""

from __future__ import annotations

import csv
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeVar

import msgspec
import polars as pl

from entry_point.data.errors import DataError
from entry_point.data.sources.labels import column_of, quoted, text_column
from entry_point.data.sources.rows import IMAGE_SUFFIXES
from entry_point.data.sources.splits import split_named
from entry_point.data.sources.table_folder import IMAGE_END, LIST_SUFFIXES, TABLE_SUFFIXES
from entry_point.job.program import ReadError

T = TypeVar("T")
_Text = str | bool | int | float

METADATA = "-metadata"
"""Suffix of keys in SageMaker's augmented manifests: `x-metadata` describes the attribute `x`."""
CSV_SUFFIXES = (".csv", ".tsv", *LIST_SUFFIXES)
_LONGEST_CELL = 1 << 23
"""Most characters in a cell: a quote that is never closed makes a cell of the rest of the file."""
_UNIT = "\x1f"
"""ASCII's unit separator, put between the cells that `_words` finds."""
_SHOWN = 20
"""Number of bytes to show before the first that is not UTF-8."""


class TableFile(NamedTuple):
    """A table whose columns are known."""

    file: Path
    names: list[str]
    """Names of the columns."""
    has_header: bool = True
    """Whether the file has a header with the names."""


def open_table(file: Path) -> TableFile:
    """Find out the columns. Raises DataError if the file is missing, empty, damaged or no table."""
    suffix, known = file.suffix.lower(), (*TABLE_SUFFIXES, *LIST_SUFFIXES)
    if suffix not in known:
        raise DataError(f"{file}: must be a table; its name must end in one of {', '.join(known)}")
    if not file.is_file():
        raise DataError(f"{file}: no such table")
    if suffix == ".parquet":
        with _damage_named(file):
            return TableFile(file, [*pl.read_parquet_schema(file)])
    if suffix in CSV_SUFFIXES:
        first = next(_csv_rows(file), [])
        listed = _list_columns(suffix, first)
        table = TableFile(file, listed or [name.strip() for name in first], not listed)
    else:
        table = TableFile(file, [*next(_json_rows(file, dict), {})])
    if not table.names:
        raise DataError(f"{file} is empty: it must hold a table of paths and labels")
    return table


def first_row(table: TableFile) -> dict[str, Any]:
    """Returns the cells of a table's first row by column; of a Parquet file, only those of text."""
    file = table.file
    if file.suffix.lower() == ".parquet":
        texts = [name for name, kind in pl.read_parquet_schema(file).items() if kind == pl.String]
        return pl.read_parquet(file, columns=texts, n_rows=1, glob=False).row(0, named=True)
    if file.suffix.lower() not in CSV_SUFFIXES:
        return next(_json_rows(file, dict))
    rows = islice(_csv_rows(file), int(table.has_header), None)
    return dict(zip(table.names, next(rows), strict=True))


def read_columns(table: TableFile, columns: list[str]) -> pl.DataFrame:
    """Returns existing columns as text or lists of text.

    Raises DataError for a damaged file, and OSError or ReadError if the disk fails.
    """
    file, suffix = table.file, table.file.suffix.lower()
    if suffix == ".parquet":
        with _damage_named(file):
            frame = pl.read_parquet(file, columns=columns, glob=False)
    elif suffix in CSV_SUFFIXES:
        frame = _read_csv(table, columns)
    else:
        frame = _read_json_lines(file, columns)
    if frame.is_empty():
        raise DataError(f"{file} holds no rows, only a header")
    return pl.DataFrame([text_column(file, column) for column in frame])


@contextmanager
def _damage_named(file: Path) -> Iterator[None]:
    """Turn polars' errors for a damaged file into DataError, and those of the disk into
    ReadError."""
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{file} is damaged ({reason}): write it again") from error
    except OSError as error:  # polars' error does not name the file
        raise ReadError(f"{file}: could not be read ({error}); check its disk") from error


# CSV, with Python's csv: polars silently fills short rows, and reads past open quotes.


def _read_csv(table: TableFile, columns: list[str]) -> pl.DataFrame:
    rows = _csv_rows(table.file)
    if table.has_header:
        next(rows)
    places = {name: place for place, name in enumerate(table.names)}
    cells = {name: list[str]() for name in columns}
    wanted = [(places[name], column) for name, column in cells.items()]
    for row in rows:
        for place, column in wanted:
            column.append(row[place])
    return pl.DataFrame(cells, dict.fromkeys(columns, pl.String))


def _csv_rows(file: Path) -> Iterator[list[str]]:
    """Yields the cells of the header and of all rows, equally many in each. Raises DataError."""
    csv.field_size_limit(_LONGEST_CELL)
    with file.open(encoding="utf-8-sig", newline="") as text:
        try:
            reader, width = _csv_reader(file.suffix.lower(), text), 0
            for cells in filter(None, reader):
                width = width or len(cells)
                if len(cells) != width:
                    raise DataError(
                        f"{file}, line {reader.line_num}: has {len(cells)} cells, but the first "
                        f"line has {width}: put cells that contain the separator into quotes"
                    )
                yield cells
        except csv.Error as error:
            where = f"{file}, line {reader.line_num}"
            raise DataError(f"{where}: {error}: check the quotes there") from error
        except UnicodeDecodeError as error:
            wrong = error.object[max(error.start - _SHOWN, 0) : error.start + 1]
            shown = quoted(wrong.decode("latin-1"))
            raise DataError(f"{file} is not UTF-8, as in {shown}: save it as UTF-8") from error


def _csv_reader(suffix: str, text: TextIO) -> Any:
    """Returns a reader of rows. A CSV may use semicolons or tabs, and a list also blanks."""
    lines: Iterable[str] = text
    is_list = suffix in LIST_SUFFIXES
    first = next((line for line in text if line.strip()), "")
    text.seek(0)
    known, separator = ("\t,;", " ") if is_list else (",;\t", ",")
    separator = next((each for each in known if each in first), separator)
    if suffix == ".tsv":
        separator = "\t"
    if separator == " ":
        lines, separator = (_UNIT.join(_words(line)) for line in text), _UNIT
    form = partial(csv.reader, lines, delimiter=separator, skipinitialspace=True, strict=True)
    return form(quoting=csv.QUOTE_NONE) if is_list and separator != "," else form()


def _words(line: str) -> list[str]:
    """Returns the cells of a line that blanks separate, such as the path `my cats/0.jpg` and `3`.

    Only the path of an image, which may follow numbers, may contain blanks.
    """
    if (end := IMAGE_END.search(line)) is None:
        return line.split()
    head = line[: end.end()].lstrip()
    numbers = re.match(r"(?:[-+.\d]+\s+)*", head)
    assert numbers is not None
    return [*numbers[0].split(), head[numbers.end() :], *line[end.end() :].split()]


def _list_columns(suffix: str, first: Sequence[str]) -> list[str]:
    """Returns names for the columns of a list, whose first line is a row; empty for a header.

    The first cell that ends as an image's path is the `path`, a second one the `mask`. A single
    other column is the `label`; of several, one that begins with a split is `split`, and others are
    numbered, as in `column3`. A .lst begins with an index.
    """
    cells = [cell.strip().lower() for cell in first]
    images = [place for place, cell in enumerate(cells) if cell.endswith(IMAGE_SUFFIXES)]
    if not images:
        return []
    names = dict(zip(images, ("path", "mask"), strict=False))
    if suffix == ".lst" and len(cells) > 2:
        names.setdefault(0, "index")
    left = [place for place in range(len(cells)) if place not in names]
    splits = [place for place in left if split_named(cells[place])]
    if splits and len(left) > 1:
        names[splits[0]] = "split"
        left.remove(splits[0])
    names |= {place: f"column{place + 1}" if left[1:] else "label" for place in left}
    return [names[place] for place in range(len(cells))]


# JSON lines


class _Described(msgspec.Struct, rename="kebab"):
    """SageMaker's metadata of a cell."""

    class_name: _Text | None = None
    class_map: dict[str, _Text] | None = None
    """Names of the classes, by the numbers in the cell."""

    def named(self, cell: Any) -> Any:
        """Replaces numbers of classes in a cell by their names, if these are known."""
        if self.class_name is not None:
            return self.class_name
        if self.class_map is None or cell is None:
            return cell
        numbers = cell if isinstance(cell, list) else [cell]
        return [self.class_map.get(str(number), number) for number in numbers]


def _read_json_lines(file: Path, columns: list[str]) -> pl.DataFrame:
    known = {f"cell{i}": name for i, name in enumerate(columns)}
    described = {f"about{i}": name + METADATA for i, name in enumerate(columns)}
    fields = [(field, _Text | list[_Text] | None, None) for field in known]
    fields += [(field, _Described | _Text | list[Any] | None, None) for field in described]
    kind = msgspec.defstruct("Row", fields, rename={**known, **described}, gc=False)
    cells = [(*fields, list[Any]()) for fields in zip(known, described, strict=True)]
    for row in _json_rows(file, kind):
        for field, about, column in cells:
            cell, metadata = getattr(row, field), getattr(row, about)
            column.append(metadata.named(cell) if isinstance(metadata, _Described) else cell)
    return pl.DataFrame([column_of(known[field], column) for field, _, column in cells])


def _json_rows(file: Path, kind: type[T]) -> Iterator[T]:
    """Yields the content of all lines that are not blank. Raises DataError."""
    decode = msgspec.json.Decoder(kind).decode
    with file.open("rb") as lines:
        for row, line in enumerate(filter(bytes.strip, lines), 1):
            try:
                yield decode(line.removeprefix(BOM_UTF8))
            except (ValueError, RecursionError) as error:
                message = "write a JSON object per line, in UTF-8, of texts, numbers and lists"
                raise DataError(f"{file}, row {row}: {error}: {message} of these") from error
