"""What is decided to differ from version 1.1.0, each by a row of CHANGELOG.md.

A row that no longer differs is a failure, too: it would hide the next difference.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

RENAMED: dict[str, str] = {}
"""A package, a key or a word of an override of 1.1.0 (`data.images`, `data=manifest`), and what
says the same now."""

DIFFERS: dict[str, str] = {
    "request: removed_and_added_keys": "settings: no +key and ~key on SageMaker",
    "samples: demo...": "data: no fields of noise in the demo",
    "weights: averaged weights": "training: the average alone is evaluated",
}
"""The name of a comparison as it is printed (`layout: demo`, `weights: regression`), and the
reason. A name that ends in ... is the beginning of several: `request: sweep_...`."""


def today(overrides: Iterable[str]) -> list[str]:
    """The overrides of 1.1.0 as one types them now."""
    words = []
    for override in overrides:
        key, equals, value = override.partition("=")
        words.append(RENAMED.get(override, f"{RENAMED.get(key, key)}{equals}{value}"))
    return words


def row_of(name: str) -> str | None:
    """The row of DIFFERS for a comparison, if there is one."""
    if name in DIFFERS:
        return name
    rows = (row for row in DIFFERS if row.endswith("..."))
    return next((row for row in rows if name.startswith(row.removesuffix("..."))), None)


class Report:
    """Prints a line per comparison, and counts."""

    def __init__(self) -> None:
        self.equal = self.decided = self.different = 0
        self._differ: dict[str, bool] = {}
        """Of each row of DIFFERS that a comparison has: whether one of these differs."""

    def add(self, name: str, difference: str = "") -> None:
        row = row_of(name)
        if row is not None:
            self._differ[row] = self._differ.get(row, False) or bool(difference)
        self.equal += not difference
        self.decided += bool(difference and row)
        self.different += bool(difference and not row)
        word = "equal" if not difference else f"decided: {DIFFERS[row]}" if row else "DIFFERENT"
        self.say(f"{word}: {name}{difference and f': {difference}'}")

    def say(self, line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    def end(self) -> int:
        """Print the counts; returns the exit code."""
        stale = [row for row, differs in self._differ.items() if not differs]
        for row in stale:
            self.say(f"NO LONGER DIFFERENT, remove its row from decided.py: {row}")
        count = self.equal + self.decided + self.different
        self.say(f"{count} compared: {self.different} different, {self.decided} as decided")
        return int(bool(self.different or stale or not count))
