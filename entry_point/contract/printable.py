"""Names and messages from datasets, made safe to print: they may hold any character."""

from __future__ import annotations

import re

from entry_point.contract.metrics_line import metric_regexes

# Control characters, line separators, changes of direction, bytes that are not UTF-8.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_METRICS = [re.compile(regex) for regex in metric_regexes(own=[r"\w+"]).values()]


def escaped(text: str) -> str:
    """The text on one line, in valid UTF-8 and without terminal commands."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def printable(text: str) -> str:
    """`escaped`, and the platform reads no metric in it: `epoch=1` becomes `epoch\\x3d1`."""
    text = escaped(text)
    for metric in _METRICS:
        while found := metric.search(text):
            before, _, after = found[0].partition("=")
            text = f"{text[: found.start()]}{before}\\x3d{after}{text[found.end() :]}"
    return text
