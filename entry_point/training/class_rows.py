"""Takes over the rows of a head by the names of their classes.

Datasets number their classes in different orders: folders as texts (0, 1, 10, 2), tables of whole
numbers by value (0, 1, 2, 10). Weights of an earlier run therefore come with the names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from entry_point.config.config_errors import ConfigError
from entry_point.data.errors import DataError
from entry_point.data.sources.file_bytes import read_text
from entry_point.job.program import printable

CLASSES = "classes.json"
"""The names of the classes, labels or numbers, beside the weights in a model folder."""


def read_class_names(path: Path, content: Any) -> list[str] | None:
    """Returns the names of the outputs of the weights in `path`, which holds `content`.

    A checkpoint holds them; other files have CLASSES beside them, or no names. Raises ConfigError.
    """
    identity = content.get("identity") if isinstance(content, dict) else None
    if isinstance(identity, dict):
        return [str(v) for key, v in identity.items() if re.fullmatch(r"class \d+", str(key))]
    beside = path.with_name(CLASSES)
    if not beside.exists():
        return None
    try:
        names = json.loads(read_text(beside))
    except (OSError, DataError, ValueError, RecursionError) as error:
        message = f"{beside} cannot be read ({error}); correct or remove it"
        raise ConfigError("model.weights", path, message) from error
    if not isinstance(names, list):
        message = f"{beside} must be a JSON list of the classes' names; correct or remove it"
        raise ConfigError("model.weights", path, message)
    return [*map(str, names)]


def match_rows(
    state: dict[str, Tensor],
    own: Mapping[str, Tensor],
    larger: Mapping[str, Tensor],
    old: Sequence[str],
    new: Sequence[str],
) -> tuple[list[str], list[str]]:
    """Replaces in `state`, weights for the classes `old`, what depends on them by the rows for the
    classes `new`; returns the names of weights with such rows, and of those that stay as in `own`.

    `own` and `larger` are state dicts of the model for `new` and for one more class, whose shapes
    tell what depends on the classes. Sizes alone do not: a model for 64 classes may have other
    layers of 64 channels.
    """
    by_name, initial = list[str](), list[str]()
    for key, value in own.items():
        sizes = zip(value.shape, larger.get(key, value).shape, strict=True)
        dimensions = [d for d, (size, more) in enumerate(sizes) if size != more]
        if not dimensions or key not in state:
            continue
        found = state[key].shape
        fits = [*value.shape] == _with(value.shape, dimensions, len(new))
        if fits and [*found] == _with(value.shape, dimensions, len(old)):
            state[key] = _rows(value, state[key], dimensions, old, new)
            by_name.append(key)
        elif _with(found, dimensions, 0) == _with(value.shape, dimensions, 0):
            state[key] = value
            initial.append(key)
    return by_name, initial


def _with(shape: Sequence[int], dimensions: Sequence[int], size: int) -> list[int]:
    return [size if d in dimensions else each for d, each in enumerate(shape)]


def _rows(
    own: Tensor, found: Tensor, dimensions: Sequence[int], old: Sequence[str], new: Sequence[str]
) -> Tensor:
    """Returns the entries of `found` in the order of `new`; for names that are not in `old`, of
    `own`."""
    numbers = {name: number for number, name in enumerate(old)}
    places = torch.tensor([numbers.get(name, -1) for name in new])
    known = torch.ones((), dtype=torch.bool)
    for d in dimensions:
        found = found.index_select(d, places.clamp(min=0))
        known = known & (places >= 0).view(_with([1] * own.dim(), [d], -1))
    return torch.where(known, found.to(own.dtype), own)


def describe_match(old: Sequence[str], new: Sequence[str]) -> str:
    """Returns in words how many rows are taken over."""
    added = [name for name in new if name not in {*old}]
    text = f"rows by class name, {len(new) - len(added)} of {len(new)}"
    return f"{text}; new: {some(added)}" if added else text


def some(names: Sequence[str]) -> str:
    """Returns the first names for a log line."""
    return printable(", ".join([*names[:5], *(["..."] if len(names) > 5 else [])]))
