"""`knob`: a dataclass field that states its allowed values once, for the check and for the docs."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from entry_point.config.config_errors import ConfigError, near

_BOUNDS = {
    "least": ("at least", operator.ge),
    "above": ("above", operator.gt),
    "most": ("at most", operator.le),
    "below": ("below", operator.lt),
}


@dataclass(frozen=True)
class Allowed:
    """The values that a knob takes. For a list, choices and bounds apply to each item."""

    choices: Sequence[str]
    length: int | None
    bounds: Mapping[str, float]

    def __str__(self) -> str:
        """The words after "must be"."""
        bounds = " and ".join(f"{_BOUNDS[name][0]} {value}" for name, value in self.bounds.items())
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.length is not None:
            return f"{self.length} numbers" + (f", each {bounds}" if bounds else "")
        return bounds

    def check(self, key: str, value: Any) -> None:
        """Raise ConfigError unless `value` is allowed. Whether it may be None, its type says."""
        items = value if isinstance(value, list) else [value]
        wrong = [item for item in items if item is not None and not self._holds(item)]
        if wrong and self.choices:
            raise ConfigError(key, wrong[0], f"must be {self}{near(wrong[0], self.choices)}")
        if wrong or (self.length is not None and len(items) != self.length):
            raise ConfigError(key, value, f"must be {self}")
        if not all(math.isfinite(item) for item in items if isinstance(item, float)):
            raise ConfigError(key, value, "must be finite")

    def _holds(self, value: Any) -> bool:
        in_bounds = all(_BOUNDS[name][1](value, bound) for name, bound in self.bounds.items())
        return in_bounds and (not self.choices or value in self.choices)


def knob(
    default: Any, *, choices: Sequence[str] = (), length: int | None = None, **bounds: float
) -> Any:
    """A dataclass field with a default and its allowed values.

    `bounds` are `least`, `above`, `most` and `below`. NaN and infinity are never allowed.
    """
    metadata = {"allowed": Allowed(choices, length, bounds)}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def check_knobs(config: Any, group: str = "") -> None:
    """Raise ConfigError for the first knob with a value that is not allowed."""
    for item in fields(config):
        if allowed := item.metadata.get("allowed"):
            allowed.check(f"{group}.{item.name}".lstrip("."), getattr(config, item.name))
