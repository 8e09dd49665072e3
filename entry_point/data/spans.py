"""Timing of the parts of making a batch, in any thread or process."""

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
    """Nanoseconds since 1970, comparable across the processes of a machine."""
    end: int
    process: int
    thread: int
    """The operating system's thread id."""


class _Recorder(threading.local):
    spans: list[Span] | None = None


_recorder = _Recorder()
_NOTHING = nullcontext()


def span(name: str) -> AbstractContextManager[None]:
    """Time the block if this thread is recording; otherwise the cost is negligible."""
    return _NOTHING if _recorder.spans is None else _recorded(name, _recorder.spans)


@contextmanager
def recording() -> Iterator[list[Span]]:
    """Collect the spans of this thread while the block runs."""
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
