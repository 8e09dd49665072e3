"""The file whose first 1024 characters SageMaker shows as the job's failure reason."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from entry_point.contract.printable import masked, printable
from entry_point.contract.whole_file import naming

LIMIT = 1024


def failure_text(error: BaseException) -> str:
    """The error, then as many of the traceback's last lines as fit."""
    headline = "".join(traceback.format_exception_only(error)).strip()
    headline = "\n".join(map(printable, headline.split("\n")))[: LIMIT // 2]
    trace = "".join(traceback.format_tb(error.__traceback__))
    room = LIMIT - len(headline) - 1
    if len(trace) > room:
        trace = trace[-room:].partition("\n")[2]
    return f"{headline}\n{trace}".rstrip()


@contextmanager
def failure_file(path: Path) -> Iterator[Callable[[str], bool]]:
    """Yield a function that writes the reason to `path`, where none is left from before.

    Its room is reserved before the work, so that a disk that is full by then still takes it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    reserved = path.with_name(f".{path.name}")

    def write(text: str) -> bool:
        content = masked(text)[:LIMIT].encode("utf-8", "backslashreplace")
        with reserved.open("r+b") as file:
            file.write(content)
            file.truncate()
            os.fsync(file.fileno())
        reserved.rename(path)
        return True

    size = 4 * LIMIT  # UTF-8 takes up to 4 bytes for a character
    try:
        with naming(path, reserved, size):
            reserved.write_bytes(bytes(size))
        yield write
    finally:
        reserved.unlink(missing_ok=True)
