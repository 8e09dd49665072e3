"""`knob`: a dataclass field that states its allowed values once, for the check and for the docs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from entry_point.config.config_errors import ConfigError, near


@dataclass(frozen=True)
class Allowed:
    """The values that a knob takes, in a list each of its items. NaN is outside any bounds."""

    choices: Sequence[str] = ()
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    length: int | None = None

    def __str__(self) -> str:
        """The words after "must be"."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.least is not None and self.most is not None:
            bounds = f"from {self.least} to {self.most}"
        else:
            names = {
                "at least": self.least,
                "above": self.above,
                "below": self.below,
                "at most": self.most,
            }
            bounds = " and ".join(f"{k} {v}" for k, v in names.items() if v is not None)
        if self.length is None:
            return bounds
        return f"{self.length} numbers" + (f", each {bounds}" if bounds else "")

    def check(self, key: str, value: Any) -> None:
        """Raise ConfigError unless `value` is allowed. None is: the field's type decides on it."""
        items = value if isinstance(value, list) else [value]
        wrong = [item for item in items if item is not None and not self._holds(item)]
        if wrong and self.choices:
            raise ConfigError(key, wrong[0], f"must be {self}{near(wrong[0], self.choices)}")
        if wrong or (self.length is not None and len(items) != self.length):
            raise ConfigError(key, value, f"must be {self}")

    def _holds(self, value: Any) -> bool:
        return (
            (not self.choices or value in self.choices)
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )


def knob(default: Any, **allowed: Any) -> Any:
    """A dataclass field with a default; `allowed` are the fields of `Allowed`."""
    metadata = {"allowed": Allowed(**allowed)}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def check_knobs(config: Any, group: str = "") -> None:
    """Raise ConfigError for the first knob whose value is not allowed, called `group.name`."""
    for item in fields(config):
        if allowed := item.metadata.get("allowed"):
            key = f"{group}.{item.name}" if group else item.name
            allowed.check(key, getattr(config, item.name))
