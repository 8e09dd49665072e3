"""What is safe to write: names and messages of any characters, and URIs with credentials."""

from __future__ import annotations

import io
import re
import sys
from contextlib import suppress
from typing import Any, TextIO, TypeVar, cast

from entry_point.contract.metrics_line import MARK

# Control characters, line separators, changes of direction, bytes that are not UTF-8.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# `user:password@` and `token@` after a scheme. A pathlib.Path of a URI has one slash.
_CREDENTIALS = re.compile(r"""\b([a-z][\w+.-]+:/{1,2})[^\s/?#"<>]+@""", re.IGNORECASE)

T = TypeVar("T")


def masked(value: T) -> T:
    """The text, or the lists and dicts of texts, with `://***@` for the credentials of each URI.

    The job uses the real values and writes only these: the log, errors, model/, the report,
    checkpoints and what loggers get of the configuration.
    """
    if isinstance(value, str):
        return cast(T, _CREDENTIALS.sub(r"\1***@", value))
    if isinstance(value, dict):
        return cast(T, {masked(key): masked(item) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        items: Any = map(masked, value)
        return cast(T, type(value)(items))
    return value


def escaped(text: str) -> str:
    """The text on one line, in valid UTF-8 and without terminal commands."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def printable(text: str) -> str:
    """`escaped` and `masked`, and never the beginning of a line of metrics."""
    return escaped(masked(text)).replace(MARK, rf"\x5b{MARK[1:]}")


class _MaskedText(io.TextIOWrapper):
    """Whoever writes, a logger, a library or Python a traceback, writes a URI in one call.

    A line that nobody reads any more is dropped: it must not end the job before its checkpoint.
    """

    def write(self, text: str) -> int:
        with suppress(OSError):
            super().write(masked(text))
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


def mask_output() -> None:
    """Replace stdout and stderr of this process by streams that mask credentials in URIs."""
    sys.stdout, sys.stderr = _masking(sys.stdout), _masking(sys.stderr)


def _masking(stream: TextIO) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):  # the program was started without it
        return stream
    options = (stream.encoding, stream.errors, None, stream.line_buffering, stream.write_through)
    return _MaskedText(stream.buffer, *options)
