"""What the cells of a table's label columns mean: classes, lists of labels, or numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from entry_point.config.data_config import TableConfig
from entry_point.data.errors import DataError
from entry_point.data.sources.dataset_description import CLASS_NAME, is_class_name
from entry_point.data.sources.label_kind import Kind
from entry_point.data.sources.table_files import BadRowError, quoted

MOST_VALUES = 1 << 30
"""Rows times labels (or numbers) of a table. Training takes them as float32, 4 GB at most."""
_WHOLE = r"^[+-]?\d{1,18}$"
_LONGEST_NAME = 255
_ADD = "add one, or remove the row"


@dataclass(frozen=True)
class Labels:
    """The labels of some rows."""

    kind: Kind
    names: list[str]
    """Classes, labels, or targets."""
    values: NDArray[Any]
    """int32 (N,) of kind `class`; uint8 (N, names) of kind `labels`; else float32 (N, names)."""

    def has(self, rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which names occur in `rows`; not for numbers."""
        if self.kind == "labels":
            return np.asarray(self.values[rows].any(axis=0))
        return np.bincount(self.values[rows], minlength=len(self.names)) > 0


def read_labels(columns: list[pl.Series], settings: TableConfig, key: str) -> Labels:
    """The labels of all rows; `key` is the settings' group. Raises BadRowError and DataError."""
    if columns[0].is_empty():
        return Labels("class", [], np.zeros(0, np.int32))
    for column in columns:
        if column.has_nulls():
            raise BadRowError(_first(column.is_null()), f"has no {quoted(column.name)}: {_ADD}")
    columns = [_text_or_numbers(column) for column in columns]
    column, is_one = columns[0], len(columns) == 1
    kind = settings.kind
    if kind is None:
        kind = _guess(column, settings.separator, key) if is_one else "numbers"
    if kind == "numbers" or not is_one:
        return _numbers(columns, kind, key)
    rows, items = _items(column, settings.separator if kind == "labels" else None)
    if kind == "class" and not np.array_equal(rows, np.arange(len(column))):
        row = _first(column.list.len() != 1)
        shown = quoted(column[row].to_list())
        raise BadRowError(row, f"the label {shown} is not one class: set {key}.kind=labels")
    names, numbers = _named(rows, items, allow_nan=settings.kind is not None)
    if kind == "class":
        return Labels(kind, names, numbers)
    _require_few(len(column), len(names), "different labels")
    values = np.zeros((len(column), len(names)), np.uint8)
    values[rows, numbers] = 1
    return Labels(kind, names, values)


def _text_or_numbers(column: pl.Series) -> pl.Series:
    """The column as text, numbers, or lists of these. Raises DataError for others."""
    dtype = column.dtype
    inner = dtype.inner if isinstance(dtype, (pl.List, pl.Array)) else dtype
    if inner.is_float() or inner.is_decimal():
        simple: Any = pl.Float64
    elif inner.is_nested() or inner in (pl.Binary, pl.Object):
        must = "must be text, numbers or lists of these"
        raise DataError(f"the column {quoted(column.name)} is of type {dtype}: {must}")
    else:
        simple = pl.String
    return column.cast(simple if inner is dtype else pl.List(simple))


def _guess(column: pl.Series, separator: str, key: str) -> Kind:
    """The kind of labels that a column looks like; see TableConfig.kind. Raises BadRowError."""
    is_list = isinstance(column.dtype, pl.List)
    items = column.explode() if is_list else column
    if items.dtype == pl.Float64:
        return "numbers"
    if column.name == "labels" and not is_list:
        return "labels"
    texts = items.unique().str.strip_chars().drop_nulls()
    numbers = texts.cast(pl.Float64, strict=False)
    fractions = texts.filter(numbers.is_finite() & ~texts.str.contains(_WHOLE))
    names = texts.filter(numbers.is_null() & (texts != ""))
    if is_list:
        return "labels" if fractions.is_empty() or len(names) else "numbers"
    if len(fractions) and len(names):
        cells = column.str.strip_chars()
        number, name = (_first(cells.is_in(each.implode())) for each in (fractions, names))
        raise BadRowError(
            max(number, name),
            f"some labels are numbers, such as {quoted(column[number])}, some are names, such as "
            f"{quoted(column[name])}: correct them, or set {key}.kind=class",
        )
    if len(fractions):
        return "numbers"
    return "labels" if names.str.contains(separator, literal=True).any() else "class"


def _items(column: pl.Series, separator: str | None) -> tuple[NDArray[np.int64], pl.Series]:
    """The single labels of all rows, and the row of each. Raises BadRowError."""
    frame = pl.DataFrame({"row": np.arange(len(column)), "item": column})
    if isinstance(column.dtype, pl.List):
        frame = frame.filter(column.list.len() > 0).explode("item")
    elif separator is not None:
        frame = frame.with_columns(pl.col("item").str.split(separator)).explode("item")
        frame = frame.filter(pl.col("item").str.strip_chars() != "")
    return frame["row"].to_numpy(), frame["item"]


def _named(
    rows: NDArray[np.int64], items: pl.Series, *, allow_nan: bool
) -> tuple[list[str], NDArray[np.int32]]:
    """The names of all items in their order, and the position of each item's name in them.

    Raises BadRowError.
    """
    unique = items.unique(maintain_order=True)
    names = []
    for item in unique:
        try:
            names.append(_class_name(item, allow_nan=allow_nan))
        except ValueError as error:
            found = items.is_null() if item is None else items == item
            raise BadRowError(int(rows[_first(found)]), str(error)) from error
    ordered = _in_order(names)
    places = {name: place for place, name in enumerate(ordered)}
    of_unique = pl.Series([places[name] for name in names], dtype=pl.Int32)
    numbers = items.replace_strict(unique, of_unique, return_dtype=pl.Int32)
    return ordered, numbers.to_numpy().astype(np.int32)


def _class_name(cell: str | float | None, *, allow_nan: bool) -> str:
    """The name that a cell means. Raises ValueError."""
    name = "" if cell is None else str(cell).strip()
    if isinstance(cell, float) and cell.is_integer():
        name = str(int(cell))
    if not name:
        raise ValueError(f"the label is empty: {_ADD}")
    if name.lower() == "nan" and (isinstance(cell, float) or not allow_nan):
        raise ValueError(f"the label is NaN: {_ADD}")
    if len(name) > _LONGEST_NAME:
        raise ValueError(f"the label {quoted(name)} has more than {_LONGEST_NAME} characters")
    if not is_class_name(name):
        raise ValueError(f"the label {quoted(name)}: {CLASS_NAME}")
    return name


def _in_order(names: Iterable[str]) -> list[str]:
    """Whole numbers by value, other names as text."""
    unique = set(names)
    if all(re.match(_WHOLE, name) for name in unique):
        return sorted(unique, key=lambda name: (int(name), name))
    return sorted(unique)


def _numbers(columns: list[pl.Series], kind: Kind, key: str) -> Labels:
    """One or more numbers per row; those of kind `labels` say which labels it has."""
    names = [column.name for column in columns]
    if len(columns) == 1 and isinstance(columns[0].dtype, pl.List):
        lengths = columns[0].list.len()
        width = int(lengths[0])
        if (lengths != width).any():
            row = _first(lengths != width)
            cell = quoted(columns[0][row].to_list())
            raise BadRowError(row, f"the label {cell} has another length than the first row's")
        columns = [columns[0].list.get(place) for place in range(width)]
        names = [f"{names[0]} {number}" for number in range(width)] if width != 1 else names
    _require_few(len(columns[0]), len(columns), "numbers each")
    values = np.stack([_finite(column) for column in columns], axis=1)
    if kind == "numbers":
        return Labels(kind, names, values)
    others = ~np.isin(values, (0, 1))
    if others.any():
        row, place = np.argwhere(others)[0].tolist()
        shown = f"{quoted(names[place])} is {values[row, place]:g}"
        raise BadRowError(row, f"{shown}: must be 0 or 1, or set {key}.kind=numbers")
    return Labels(kind, names, values.astype(np.uint8))


def _finite(column: pl.Series) -> NDArray[np.float32]:
    """The column's numbers. Raises BadRowError."""
    texts = column.str.strip_chars() if column.dtype == pl.String else column
    numbers = texts.cast(pl.Float64, strict=False)
    with np.errstate(over="ignore"):
        values = numbers.to_numpy().astype(np.float32)
    if not np.isfinite(values).all():
        row = int(np.isfinite(values).argmin())
        what = "number" if numbers[row] is None else "finite number"
        shown = quoted(column[row])
        raise BadRowError(row, f"the label {shown} is no {what}: correct it, or remove the row")
    return values


def _require_few(rows: int, labels: int, what: str) -> None:
    """Raise DataError if the labels take too much memory."""
    if rows * labels > MOST_VALUES:
        raise DataError(
            f"{rows} rows with {labels} {what}, {rows * labels} values together: a table may have "
            f"at most {MOST_VALUES}; remove labels that few rows have, or rows"
        )


def _first(rows: pl.Series) -> int:
    """The first row that is true."""
    return int(rows.arg_max() or 0)
