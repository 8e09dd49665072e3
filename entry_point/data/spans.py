"""Named stretches of the time that making a batch took, in whichever thread or process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    name: str
    start: int
    """Nanoseconds since the epoch, as all processes of a machine count them."""
    end: int
    process: int
    thread: int
    """The system's number of the thread."""


class _Recorder(threading.local):
    spans: list[Span] | None = None


_recorder = _Recorder()
_NOTHING = nullcontext()


def span(name: str) -> AbstractContextManager[None]:
    """Records the block where somebody records; costs nothing to speak of elsewhere."""
    return _NOTHING if _recorder.spans is None else _recorded(name, _recorder.spans)


@contextmanager
def recording() -> Iterator[list[Span]]:
    """The spans that end in this thread meanwhile."""
    spans: list[Span] = []
    _recorder.spans = spans
    try:
        yield spans
    finally:
        _recorder.spans = None


@contextmanager
def _recorded(name: str, spans: list[Span]) -> Iterator[None]:
    start = time.time_ns()
    try:
        yield
    finally:
        spans.append(Span(name, start, time.time_ns(), os.getpid(), threading.get_native_id()))
