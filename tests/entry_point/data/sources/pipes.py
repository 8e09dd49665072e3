"""Named pipes (FIFOs) in place of files: opening one waits for a process that writes to it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SECONDS_UNTIL_WRITER = 5.0


@contextmanager
def pipe_at(path: Path) -> Iterator[Path]:
    """Replace the file by a pipe.

    Code that waits for a writer gets one after a few seconds, so its test fails instead of hanging.
    """
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    done = threading.Event()

    def write_nothing() -> None:
        while not done.wait(_SECONDS_UNTIL_WRITER):
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))

    writer = threading.Thread(target=write_nothing)
    writer.start()
    try:
        yield path
    finally:
        done.set()
        writer.join()
