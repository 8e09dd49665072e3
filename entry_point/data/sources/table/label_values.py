"""What the cells of a label column mean: names, lists of names, or numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entry_point.data.sources.dataset_description import CLASS_NAME, is_class_name
from entry_point.data.sources.label_kind import Kind
from entry_point.data.sources.table.bad_row import BadRowError, quoted

_WHOLE = re.compile(r"\s*[+-]?\d{1,18}\s*")
_LONGEST_NAME = 255
_FAMILIES = {str: "text", bool: "true or false", int: "a number", float: "a number"}
_FAMILIES |= {list: "a list", tuple: "a list", type(None): "empty"}


def family(column: Sequence[Any]) -> str:
    """The type that all cells have, in words. Raises BadRowError if they have several."""
    types = list(dict.fromkeys(map(type, column)))
    families = [_FAMILIES.get(each, "") for each in types]
    for each, name in zip(types, families, strict=True):
        if name != families[0] or name in ("", "empty"):
            row = next(i for i, cell in enumerate(column) if type(cell) is each)
            if name == "empty":
                raise BadRowError(row, "has no label: add one, or remove the row")
            if not name:
                must = "must be a name, a list of names, or a number"
                raise BadRowError(
                    row, f"the label {quoted(column[row])} is {each.__name__}: {must}"
                )
            raise BadRowError(
                row,
                f"the label {quoted(column[row])} is {name}, others are "
                f"{families[0]}: give all labels the same type",
            )
    return families[0]


def guess_kind(column: Sequence[Any], separator: str, key: str) -> Kind:
    """The kind of labels that a column looks like; see TableConfig.kind. Raises BadRowError."""
    cells = family(column)
    if cells == "a list":
        items = [item for cell in column for item in cell]
        types = set(map(type, items))
        return "numbers" if float in types and types <= {int, float} else "labels"
    if cells == "a number":
        return "class" if all(type(cell) is int for cell in column) else "numbers"
    if cells != "text":
        return "class"
    unique = set(column)
    fractions = {cell for cell in unique if is_number(cell) and not _WHOLE.fullmatch(cell)}
    finite = {cell for cell in fractions if math.isfinite(float(cell))}
    names = {cell for cell in unique if cell.strip() and not is_number(cell)}
    if finite and names:
        number = next(i for i, cell in enumerate(column) if cell in finite)
        name = next(i for i, cell in enumerate(column) if cell in names)
        raise BadRowError(
            max(number, name),
            f"some labels are numbers, such as {quoted(column[number])}, some are names, such as "
            f"{quoted(column[name])}: correct them, or set {key}.kind=class",
        )
    if finite:
        return "numbers"
    return "labels" if any(separator in cell for cell in names) else "class"


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def class_name(cell: Any, *, allow_nan: bool) -> str:
    """The name that a cell means. Raises ValueError."""
    if isinstance(cell, float) and not math.isfinite(cell):
        raise ValueError(f"the label is {cell}: add one, or remove the row")
    if isinstance(cell, bool):
        name = str(cell).lower()
    elif isinstance(cell, float) and cell.is_integer():
        name = str(int(cell))
    elif isinstance(cell, (str, int, float)):
        name = str(cell).strip()
    else:
        raise ValueError(f"the label {quoted(cell)} is no name")
    if not name:
        raise ValueError("the label is empty: add one, or remove the row")
    if name.lower() == "nan" and not allow_nan:
        raise ValueError("the label is NaN: add one, or remove the row")
    if len(name) > _LONGEST_NAME:
        raise ValueError(f"the label {quoted(name)} has more than {_LONGEST_NAME} characters")
    if not is_class_name(name):
        raise ValueError(f"the label {quoted(name)}: {CLASS_NAME}")
    return name


def label_names(cell: Any, separator: str, *, allow_nan: bool) -> list[str]:
    """The names in a list, or between the separators of a text; may be none. Raises ValueError."""
    if isinstance(cell, str):
        items: Iterable[Any] = [part for part in cell.split(separator) if part.strip()]
    else:
        items = cell if isinstance(cell, (list, tuple)) else [cell]
    return [class_name(item, allow_nan=allow_nan) for item in items]


def numbers(column: Sequence[Any]) -> NDArray[np.float64]:
    """The column's numbers, float64 (rows, numbers in a cell). Raises BadRowError."""
    try:
        values = np.array(column, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        values = np.array([_as_numbers(row, cell, column[0]) for row, cell in enumerate(column)])
    values = values.reshape(len(column), -1)
    with np.errstate(over="ignore"):
        good = np.isfinite(values.astype(np.float32)).all(axis=1)
    if not good.all():
        row = int(good.argmin())
        shown = quoted(column[row])
        raise BadRowError(row, f"the label {shown} is no finite number: correct or remove the row")
    return values


def _as_numbers(row: int, cell: Any, first: Any) -> NDArray[np.float64]:
    try:
        values = np.array(cell, dtype=np.float64)
    except OverflowError:  # an integer of more than 308 digits
        raise BadRowError(
            row, f"the label {quoted(cell)} is no finite number: correct or remove the row"
        ) from None
    except (TypeError, ValueError):
        values = None
    if values is None or values.ndim > 1:
        raise BadRowError(row, f"the label {quoted(cell)} is no number")
    if values.shape != np.shape(first):
        raise BadRowError(row, f"the label {quoted(cell)} has another length than the first row's")
    return values


def in_order(names: Iterable[str]) -> list[str]:
    """Whole numbers by value, other names as text."""
    unique = set(names)
    if all(_WHOLE.fullmatch(name) for name in unique):
        return sorted(unique, key=lambda name: (int(name), name))
    return sorted(unique)
