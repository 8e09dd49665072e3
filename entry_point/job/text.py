"""Writes names and messages of any characters, numbers with their nouns, and tables."""

from __future__ import annotations

import re
from collections.abc import Sequence

from entry_point.job.metrics_line import MARK

# Control characters, line separators, changes of direction, bytes that are not UTF-8.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str) -> str:
    """Returns the text on one line, in valid UTF-8 and without terminal commands."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def printable(text: str) -> str:
    """Returns the text `escaped`, also the mark with which lines of metrics begin."""
    return escaped(text).replace(MARK, rf"\x5b{MARK[1:]}")


def shortened(text: str, most: int = 400) -> str:
    """Returns the text, without its middle if it is long: messages end with what to do."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} ... {text[-half:]}"


def listed(names: Sequence[str]) -> str:
    """Returns the first five names for a log line."""
    return printable(", ".join([*names[:5], *(["..."] if len(names) > 5 else [])]))


def counted(number: int, noun: str) -> str:
    """Returns a number and its noun, as in "1 image", "2 images" and "0 classes"."""
    plural = "" if number == 1 else "es" if noun.endswith(("s", "tch")) else "s"
    return f"{number} {noun}{plural}"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Returns the rows of a table as lines, with each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def duration(seconds: float) -> str:
    """Returns a duration such as `25 s`, `3 min 20 s` or `2 h 5 min`."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
