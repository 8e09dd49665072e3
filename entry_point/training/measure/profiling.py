"""`trainer.diagnose=profile`: traces some steps, and tables what they spend time on."""

from __future__ import annotations

import gzip
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerAction, ProfilerActivity, profile, schedule

from entry_point.contract.whole_file import replacing, write_text
from entry_point.data.spans import Span
from entry_point.training.devices import Devices
from entry_point.training.input import DeviceBatch

logger = logging.getLogger(__name__)

Trace = dict[str, Any]
"""A trace in Chrome's format."""

SKIPPED_STEPS, PROFILED_STEPS, TOP = 10, 10, 25
RECORDING = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
STEP_RANGES = ("data_wait", "copy", "prepare", "forward", "backward", "optimizer")


class StepProfiler:
    """Profiles ten steps of this process's first epoch, on every rank."""

    def __init__(self, wanted: bool, folder: Path, devices: Devices) -> None:
        self._wanted, self._folder, self._devices = wanted, folder, devices

    def watch(self, batches: Iterator[DeviceBatch], steps: int) -> Iterator[DeviceBatch]:
        """The same `steps` batches; a step lasts from one batch to the next."""
        if not self._wanted:
            return batches
        self._wanted = False
        return self._watching(batches, steps)

    def _watching(self, batches: Iterator[DeviceBatch], steps: int) -> Iterator[DeviceBatch]:
        activities = [ProfilerActivity.CPU]
        if self._devices.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        else:
            # Kineto reads this at its first use; otherwise it logs that there is no GPU.
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        spans: list[Span] = []
        taken: list[Span] = []
        profiles: list[tuple[Trace, str]] = []
        try:
            # The pipeline works ahead: the trace shows both the batches made during the recorded
            # steps and those consumed by them.
            with profile(
                activities=activities,
                schedule=_plan(steps),
                on_trace_ready=lambda done: profiles.append((_trace(done), self._operators(done))),
                acc_events=True,
            ) as profiler:
                for number, batch in enumerate(batches, 1):
                    spans.extend(batch.spans)
                    if profiler.current_action in RECORDING:
                        taken.extend(batch.spans)
                    yield batch
                    if number < steps:  # what follows the last step is not a step
                        profiler.step()
        finally:
            for trace, operators in profiles:
                self._write(trace, operators, spans, taken)

    def _operators(self, profiler: profile) -> str:
        kind = "self_cpu_time_total"
        if self._devices.device.type == "cuda":
            kind = "self_device_time_total"
        averages = profiler.key_averages()
        return str(averages.table(sort_by=kind, row_limit=TOP, max_name_column_width=60))

    def _write(
        self, trace: Trace, operators: str, spans: Sequence[Span], taken: Sequence[Span]
    ) -> None:
        ranges = range_table(trace, taken)
        add_spans(trace, list(dict.fromkeys([*taken, *within(trace, spans)])))
        rank = self._devices.rank
        path = self._folder / f"rank{rank}.{time.time_ns() // 1_000_000}.pt.trace.json.gz"
        with replacing(path) as temporary, gzip.open(temporary, "wt", encoding="utf-8") as file:
            json.dump(trace, file)
        text = "\n".join([*ranges, "", f"The {TOP} most expensive operators:", operators])
        write_text(self._folder / f"rank{rank}.txt", text)
        for line in [*ranges, f"trace {path}: open it in https://ui.perfetto.dev"]:
            logger.info(line)


def _plan(steps: int) -> Callable[[int], ProfilerAction]:
    """Which of an epoch's steps are recorded."""
    skipped = min(SKIPPED_STEPS, max(0, steps - PROFILED_STEPS - 1))
    return schedule(skip_first=skipped, wait=0, warmup=1, active=PROFILED_STEPS, repeat=1)


def _trace(profiler: profile) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        trace: Trace = json.loads(file.read_text(encoding="utf-8"))
        return trace


def add_spans(trace: Trace, spans: Sequence[Span]) -> None:
    """Add spans on the profiler's time axis, under their processes and threads."""
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
    """The spans that overlap the recorded time."""
    base = int(trace.get("baseTimeNanoseconds", 0))
    whole = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    first = min(event["ts"] for event in whole) * 1000 + base
    last = max(event["ts"] + event["dur"] for event in whole) * 1000 + base
    return [span for span in spans if span.start < last and span.end > first]


def range_table(trace: Trace, spans: Sequence[Span]) -> list[str]:
    """Milliseconds per step of each named range, and of `spans`: how the steps' batches were made,
    perhaps earlier.

    On a GPU a range has two times: the host's, which only launches kernels, and the GPU's.
    """
    names = [e["name"] for e in trace["traceEvents"] if e.get("cat") == "user_annotation"]
    steps = sum(name.startswith("ProfilerStep#") for name in names) or 1
    host = _milliseconds(trace, "user_annotation")
    for span in spans:
        host.setdefault(span.name, []).append((span.end - span.start) / 1e6)
    gpu = _milliseconds(trace, "gpu_user_annotation")
    head, columns = ["ms/step"], [host]
    if any(gpu.values()):
        head, columns = ["host ms/step", "GPU ms/step"], [host, gpu]
    title = f"profile of {steps} steps"
    return [f"{title:26}{'calls/step':>11}" + "".join(f"{name:>14}" for name in head)] + [
        f"{name:26}{len(times) / steps:>11.1f}"
        + "".join(f"{sum(column.get(name, ())) / steps:>14.3f}" for column in columns)
        for name, times in host.items()
        if times
    ]


def _milliseconds(trace: Trace, category: str) -> dict[str, list[float]]:
    """How long each call of each named range took."""
    events = [event for event in trace["traceEvents"] if event.get("cat") == category]
    return {name: [e["dur"] / 1e3 for e in events if e["name"] == name] for name in STEP_RANGES}
