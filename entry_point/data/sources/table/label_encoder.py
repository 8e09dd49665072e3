"""Collects the labels of a table's rows, chunk by chunk, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from entry_point.config.data_config import TableConfig
from entry_point.data.sources.label_kind import Kind
from entry_point.data.sources.table.bad_row import BadRowError, quoted
from entry_point.data.sources.table.columns import Columns
from entry_point.data.sources.table.label_values import (
    class_name,
    family,
    guess_kind,
    in_order,
    label_names,
    numbers,
)

MOST_VALUES = 1 << 30
"""Rows times labels (or numbers) of a table. Training takes them as float32, 4 GB at most."""


@dataclass(frozen=True)
class Labels:
    """The labels of some rows."""

    kind: Kind
    names: list[str]
    """Classes, labels, or targets."""
    values: NDArray[Any]
    """int32 (N,) of kind `class`; uint8 (N, names) of kind `labels`; else float32 (N, names)."""

    def used_by(self, rows: NDArray[np.bool_]) -> Labels:
        """Without the names that none of `rows` has; the other rows may lose their labels."""
        if self.kind == "numbers" or (kept := self.has(rows)).all():
            return self
        if self.kind == "labels":
            values: NDArray[Any] = self.values[:, kept]
        else:
            values = np.where(kept, np.cumsum(kept) - 1, -1)[self.values].astype(np.int32)
        names = [name for name, keep in zip(self.names, kept, strict=True) if keep]
        return Labels(self.kind, names, values)

    def has(self, rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which names occur in `rows`; not for numbers."""
        if self.kind == "labels":
            return np.asarray(self.values[rows].any(axis=0))
        return np.bincount(self.values[rows], minlength=len(self.names)) > 0


class Encoder(Protocol):
    def add(self, columns: Columns) -> None:
        """Add a chunk of rows. Raises BadRowError."""
        ...

    def labels(self) -> Labels: ...


def encoder_for(names: list[str], columns: Columns, settings: TableConfig, key: str) -> Encoder:
    """The encoder of columns that begin with this chunk; `key` is the settings' group.

    Raises BadRowError.
    """
    kind = settings.kind
    if kind is None and len(names) == 1:
        plural = names[0] == "labels" and family(columns[0]) == "text"
        kind = "labels" if plural else guess_kind(columns[0], settings.separator, key)
    if kind == "class":
        return _Classes(settings, key)
    if kind == "labels" and len(names) == 1:
        return _Lists(settings)
    return _Numbers(names, binary=kind == "labels", key=key)


class _Unique:
    """Cells as numbers of their unique values, which are few."""

    def __init__(self) -> None:
        self.cells: dict[Any, int] = {}
        self._numbers: list[NDArray[np.int32]] = []
        self._family = ""

    def add(self, column: Sequence[Any]) -> list[Any]:
        """Returns the cells that are new."""
        cells = family(column)
        if self._family not in ("", cells):
            raise BadRowError(
                0,
                f"the label {quoted(column[0])} is {cells}, labels before it are {self._family}: "
                "give all labels the same type",
            )
        self._family = cells
        new = [cell for cell in dict.fromkeys(column) if cell not in self.cells]
        self.cells.update(zip(new, count(len(self.cells)), strict=False))
        found = map(self.cells.__getitem__, column)
        self._numbers.append(np.fromiter(found, np.int32, len(column)))
        return new

    @property
    def numbers(self) -> NDArray[np.int32]:
        return np.concatenate(self._numbers)


class _Classes:
    """One class per row."""

    def __init__(self, settings: TableConfig, key: str) -> None:
        self._settings, self._key = settings, key
        self._unique = _Unique()
        self._names: list[str] = []

    def add(self, columns: Columns) -> None:
        (column,) = columns
        new = self._unique.add(column)
        if new and self._settings.kind is None:
            kind = guess_kind(column, self._settings.separator, self._key)
            if kind != "class":
                row = next(i for i, cell in enumerate(column) if cell in new)
                raise BadRowError(
                    row,
                    f"labels from here on look like {kind}, labels before look like classes: set "
                    f"{self._key}.kind to class or {kind}",
                )
        for cell in new:
            try:
                name = class_name(cell, allow_nan=self._settings.kind == "class")
            except ValueError as error:
                raise BadRowError(column.index(cell), str(error)) from error
            self._names.append(name)

    def labels(self) -> Labels:
        names = in_order(self._names)
        places = {name: place for place, name in enumerate(names)}
        places_of_cells = np.array([places[name] for name in self._names], dtype=np.int32)
        return Labels("class", names, places_of_cells[self._unique.numbers])


class _Lists:
    """Any number of labels per row."""

    def __init__(self, settings: TableConfig) -> None:
        self._separator, self._explicit = settings.separator, settings.kind is not None
        self._unique = _Unique()
        self._names: list[list[str]] = []
        self._different: set[str] = set()
        self._rows = 0

    def add(self, columns: Columns) -> None:
        (column,) = columns
        if family(column) == "a list":
            column = self._hashable(column)
        for cell in self._unique.add(column):
            try:
                names = label_names(cell, self._separator, allow_nan=self._explicit)
            except ValueError as error:
                raise BadRowError(column.index(cell), str(error)) from error
            self._names.append(names)
            self._different.update(names)
        self._rows += len(column)
        _require_few(len(column), self._rows, len(self._different), "different labels")

    def _hashable(self, column: Sequence[Any]) -> list[Any]:
        cells = [tuple(cell) for cell in column]
        for row, cell in enumerate(cells):
            try:
                hash(cell)
            except TypeError:
                raise BadRowError(row, f"the label {quoted(cell)} is no list of names") from None
        return cells

    def labels(self) -> Labels:
        names = in_order(self._different)
        places = {name: place for place, name in enumerate(names)}
        held = np.zeros((len(self._names), len(names)), dtype=np.uint8)
        for row, names_of_cell in enumerate(self._names):
            held[row, [places[name] for name in names_of_cell]] = 1
        return Labels("labels", names, held[self._unique.numbers])


class _Numbers:
    """One or more numbers per row; `binary` ones say which labels it has."""

    def __init__(self, names: list[str], *, binary: bool, key: str) -> None:
        self._names, self._binary, self._key = names, binary, key
        self._values: list[NDArray[np.float32]] = []
        self._rows = 0

    def add(self, columns: Columns) -> None:
        values = np.concatenate([numbers(column) for column in columns], axis=1)
        if self._binary and not np.isin(values, (0, 1)).all():
            row, place = np.argwhere(~np.isin(values, (0, 1)))[0].tolist()
            raise BadRowError(
                row,
                f"{quoted(self._names[place])} is {values[row, place]:g}: must be 0 or 1, or set "
                f"{self._key}.kind=numbers",
            )
        if self._values and values.shape[1] != self._values[0].shape[1]:
            raise BadRowError(0, "has another number of values than the rows before")
        self._rows += len(values)
        _require_few(len(values), self._rows, values.shape[1], "numbers each")
        self._values.append(values.astype(np.float32))

    def labels(self) -> Labels:
        values = np.concatenate(self._values)
        names = self._names
        if values.shape[1] != len(names):
            names = [f"{names[0]} {number}" for number in range(values.shape[1])]
        if self._binary:
            return Labels("labels", names, values.astype(np.uint8))
        return Labels("numbers", names, values)


def _require_few(added: int, rows: int, labels: int, what: str) -> None:
    """Raise BadRowError for the last of `added` rows if the labels so far take too much memory."""
    if rows * labels > MOST_VALUES:
        raise BadRowError(
            added - 1,
            f"so far {rows} rows with {labels} {what}, {rows * labels} values together: a table "
            f"may have at most {MOST_VALUES}; remove labels that few rows have, or rows",
        )
