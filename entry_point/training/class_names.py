"""Reads for which classes weights are.

Datasets number their classes in different orders: folders as texts (0, 1, 10, 2), tables of whole
numbers by value (0, 1, 2, 10). Weights of an earlier run therefore come with the names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from entry_point.config.config_errors import ConfigError
from entry_point.data.errors import DataError
from entry_point.data.sources.file_bytes import read_text
from entry_point.job.text import printable

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


def some(names: Sequence[str]) -> str:
    """Returns the first names for a log line."""
    return printable(", ".join([*names[:5], *(["..."] if len(names) > 5 else [])]))
