"""`trainer.profile=true`: what some steps were spent on, as a trace and as tables."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from torch.profiler import ProfilerAction, ProfilerActivity, profile, schedule

from entry_point.contract.whole_file import write_text
from entry_point.data.spans import Span
from entry_point.training.device_batches import DeviceBatch
from entry_point.training.devices import Devices
from entry_point.training.measure.trace import Trace, add_spans, within, write_trace

logger = logging.getLogger(__name__)

SKIPPED_STEPS, PROFILED_STEPS, TOP = 10, 10, 25
RECORDING = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
STEP_RANGES = ("data_wait", "copy", "prepare", "forward", "backward", "optimizer")


class StepProfiler:
    """Profiles ten steps of this process's first epoch, on every rank."""

    def __init__(self, wanted: bool, folder: Path, devices: Devices) -> None:
        self._wanted, self._folder, self._devices = wanted, folder, devices

    def watch(self, batches: Iterator[DeviceBatch], steps: int) -> Iterator[DeviceBatch]:
        """The same batches; a step lies between one and the next. `steps` of them will come."""
        if not self._wanted:
            return batches
        self._wanted = False
        return self._watching(batches, steps)

    def _watching(self, batches: Iterator[DeviceBatch], steps: int) -> Iterator[DeviceBatch]:
        activities = [ProfilerActivity.CPU]
        if self._devices.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        else:
            # Kineto, which reads this at its first use, would tell the log that there is no GPU.
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        spans: list[Span] = []
        taken: list[Span] = []
        profiles: list[tuple[Trace, str]] = []
        try:
            # Batches that are made in these steps come later, those that these steps take were
            # perhaps all made before: the spans of both belong into the trace.
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
                    if number < steps:  # what follows the last one is no step
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
        # A batch that is trained again and again was made once.
        taken = list(dict.fromkeys(taken))
        ranges = range_table(trace, taken)
        add_spans(trace, list(dict.fromkeys([*taken, *within(trace, spans)])))
        rank = self._devices.rank
        name = f"rank{rank}.{time.time_ns() // 1_000_000}.pt.trace.json.gz"
        write_trace(self._folder / name, trace)
        text = "\n".join([*ranges, "", f"The {TOP} most expensive operators:", operators])
        write_text(self._folder / f"rank{rank}.txt", text)
        for line in [*ranges, f"trace {self._folder / name}: open it in https://ui.perfetto.dev"]:
            logger.info(line)


def _plan(steps: int) -> Callable[[int], ProfilerAction]:
    """Which of an epoch's steps are recorded."""
    skipped = min(SKIPPED_STEPS, max(0, steps - PROFILED_STEPS - 1))
    return schedule(skip_first=skipped, wait=0, warmup=1, active=PROFILED_STEPS, repeat=1)


def range_table(trace: Trace, spans: Sequence[Span]) -> list[str]:
    """Milliseconds per step of each named range; `spans` are those of the steps' batches, which the
    pipeline's workers may have made before.

    On a GPU a range has two times: the host's, which only launches, and the GPU's own.
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
    """What each of a step's ranges took, each time."""
    events = [event for event in trace["traceEvents"] if event.get("cat") == category]
    return {name: [e["dur"] / 1e3 for e in events if e["name"] == name] for name in STEP_RANGES}


def _trace(profiler: profile) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        trace: Trace = json.loads(file.read_text(encoding="utf-8"))
        return trace
