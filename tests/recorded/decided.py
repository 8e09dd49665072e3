"""What is decided to differ from 56ed78c, each with the reason. Keep it short.

A row that no longer differs is a failure, too: it would hide the next difference.
"""

from __future__ import annotations

from collections.abc import Iterable

RENAMED: dict[str, str] = {}
"""A key or a word of an override of 56ed78c (`data.images`, `data=manifest`), and what says the
same now."""

DIFFERS: dict[str, str] = {}
"""The name of a comparison as it is printed (`layout: demo`, `weights: regression`,
`command: make sweep ...`), and the reason."""


def today(overrides: Iterable[str]) -> list[str]:
    """The overrides of 56ed78c as one types them now."""
    words = []
    for override in overrides:
        key, equals, value = override.partition("=")
        words.append(RENAMED.get(override, f"{RENAMED.get(key, key)}{equals}{value}"))
    return words
