"""The three kinds of labels: in memory, and in the JSON member of a packed sample.

| kind | a sample has | in memory | member |
|---|---|---|---|
| class | one class | int32 or int64 (N,) | its name |
| labels | any number of labels | float32 (N, labels), 0 or 1 | a list of their names |
| numbers | a number for each target | float32 (N, targets) | the numbers by name |
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

Kind = Literal["class", "labels", "numbers"]
KINDS = ("class", "labels", "numbers")

Label = Any
"""A class: its number. Labels: their numbers, ascending. Numbers: one for each target."""


def member(kind: str, classes: Sequence[str], label: Label) -> bytes:
    """The label of a packed sample, by name: parts of a dataset may number classes differently."""
    content: Any
    if kind == "class":
        content = classes[label]
    elif kind == "labels":
        content = [classes[number] for number in label]
    else:
        content = dict(zip(classes, (float(np.float32(value)) for value in label), strict=True))
    return json.dumps(content, ensure_ascii=False).encode()
