"""The three kinds of labels: in memory, in a packed index, and as WebDataset members.

| kind | a sample has | in memory | in the index | member |
|---|---|---|---|---|
| class | one class | int64 (N,) | int32 | .cls, its number |
| labels | any number of labels | float32 (N, labels), 0 or 1 | list of int32 | .json, names |
| numbers | a number for each target | float32 (N, targets) | list of float32 | .json, by name |
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from arro3.core import Array, DataType, Field, list_array, list_flatten, list_offsets
from numpy.typing import NDArray

Kind = Literal["class", "labels", "numbers"]
KINDS = ("class", "labels", "numbers")

_ITEM = {"labels": (DataType.int32(), np.int32), "numbers": (DataType.float32(), np.float32)}

Label = Any
"""A class: its number. Labels: their numbers, ascending. Numbers: one for each target."""


def member(kind: str, classes: Sequence[str], label: Label) -> tuple[str, bytes]:
    """Suffix and content of the member that holds a sample's label, as WebDataset decodes it."""
    if kind == "class":
        return ".cls", str(label).encode()
    content: Any
    if kind == "labels":
        content = [classes[number] for number in label]
    else:
        content = dict(zip(classes, (float(np.float32(value)) for value in label), strict=True))
    return ".json", json.dumps(content, ensure_ascii=False).encode()


def names_of(kind: str, classes: Sequence[str], label: Label) -> list[str]:
    """The classes or labels of a sample; none for numbers."""
    if kind == "numbers":
        return []
    return [classes[number] for number in ([label] if kind == "class" else label)]


def arrow_type(kind: str) -> DataType:
    """The type of the index's column `label`."""
    if kind == "class":
        return DataType.int32()
    return DataType.list(Field("item", _ITEM[kind][0], nullable=False))


def arrow_lists(kind: str, labels: Sequence[Label] | NDArray[Any]) -> Array:
    """The index's column for the labels of some samples; not for one class each."""
    arrow, number = _ITEM[kind]
    ends = np.cumsum([0, *map(len, labels)], dtype=np.int32)
    values = [value for label in labels for value in label]
    # arro3 0.8 rejects empty numpy arrays.
    items = Array.from_numpy(np.asarray(values, number)) if values else Array([], type=arrow)
    return list_array(Array.from_numpy(ends), items, type=arrow_type(kind))


def lists_of(column: Array) -> list[Label]:
    """The labels of some samples, from the index's column."""
    ends, values = _ends_and_values(column)
    return [values[start:end].tolist() for start, end in pairwise(ends)]


def fill(labels: NDArray[np.float32], kind: str, column: Array) -> None:
    """Set `labels`, float32 (N, outputs), from the index's column. Raises ValueError."""
    ends, values = _ends_and_values(column)
    outputs = labels.shape[1]
    if kind == "numbers":
        if len(values) != labels.size or np.any(np.diff(ends) != outputs):
            raise ValueError(f"a sample does not have {outputs} numbers")
        if not np.isfinite(values).all():
            raise ValueError("a number is not finite")
        labels[:] = values.reshape(labels.shape)
        return
    if len(values) and not 0 <= values.min() <= values.max() < outputs:
        raise ValueError(f"a label is not from 0 to {outputs - 1}")
    rows = np.repeat(np.arange(len(labels)), np.diff(ends))
    labels[:] = 0
    labels[rows, values] = 1


def _ends_and_values(column: Array) -> tuple[NDArray[Any], NDArray[Any]]:
    values = list_flatten(column)
    empty = np.empty(0, np.int64)
    return list_offsets(column).to_numpy(), values.to_numpy() if len(values) else empty
