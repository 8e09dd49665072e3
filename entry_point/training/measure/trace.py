"""Traces in Chrome's format: the profiler's, and what happened in the data pipeline meanwhile."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from entry_point.contract.whole_file import replacing
from entry_point.data.spans import Span

Trace = dict[str, Any]


def add_spans(trace: Trace, spans: Sequence[Span]) -> None:
    """Put spans on the profiler's time axis, in their processes and threads."""
    base = int(trace.get("baseTimeNanoseconds", 0))
    events: list[dict[str, Any]] = trace["traceEvents"]
    for process, thread in sorted({(span.process, span.thread) for span in spans}):
        place = {"ph": "M", "pid": process, "tid": thread, "ts": 0}
        if process != os.getpid():
            events.append({**place, "name": "process_name", "args": {"name": "data worker"}})
        events.append({**place, "name": "thread_name", "args": {"name": "data"}})
    events.extend(
        {
            "ph": "X",
            "cat": "data",
            "name": span.name,
            "pid": span.process,
            "tid": span.thread,
            "ts": (span.start - base) / 1000,
            "dur": (span.end - span.start) / 1000,
        }
        for span in spans
    )


def within(trace: Trace, spans: Sequence[Span]) -> list[Span]:
    """The spans that overlap the time the profiler recorded."""
    base = int(trace.get("baseTimeNanoseconds", 0))
    whole = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    first = min(event["ts"] for event in whole) * 1000 + base
    last = max(event["ts"] + event["dur"] for event in whole) * 1000 + base
    return [span for span in spans if span.start < last and span.end > first]


def write_trace(path: Path, trace: Trace) -> None:
    """Write it compressed, in one piece."""
    with replacing(path) as temporary, gzip.open(temporary, "wt", encoding="utf-8") as file:
        json.dump(trace, file)
