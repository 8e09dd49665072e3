"""The output of a job: it cannot fail, since losing a line of the log is no reason to lose the
training, and it holds no credentials."""

from __future__ import annotations

import io
import sys
from typing import Any, TextIO

from entry_point.contract.printable import masked


class _LastingFile(io.FileIO):
    """Drops what cannot be written: nobody reads it any more, or its disk is full."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


class _MaskedText(io.TextIOWrapper):
    """Whoever writes, a logger, a library or Python a traceback, writes a URI in one call."""

    def write(self, text: str) -> int:
        return super().write(masked(text))


def make_output_last() -> None:
    """Replace stdout and stderr of this process by streams that cannot fail and mask URIs."""
    sys.stdout, sys.stderr = _lasting(sys.stdout), _lasting(sys.stderr)


def _lasting(stream: TextIO) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):  # the program was started without it
        return stream
    file = _LastingFile(stream.fileno(), "w", closefd=False)
    # PYTHONUNBUFFERED, which the image sets, takes the buffer away.
    return _MaskedText(
        file if stream.write_through else io.BufferedWriter(file),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
