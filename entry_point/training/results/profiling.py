"""`trainer.diagnose=profile`: traces some steps, and tables what they spend time on."""

from __future__ import annotations

import gzip
import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, schedule

from entry_point.job.devices import Devices
from entry_point.job.program import counted
from entry_point.job.whole_file import replacing, write_text
from entry_point.training.input import DeviceBatch

logger = logging.getLogger(__name__)

Trace = dict[str, Any]
"""A trace in Chrome's format."""

SKIPPED_STEPS, PROFILED_STEPS, TOP = 10, 10, 25
STEP_RANGES = ("data_wait", "copy", "prepare", "forward", "backward", "optimizer")
PIPELINE_RANGES = ("read", "plan", "decode", "augment", "collate")


@dataclass
class StepProfiler:
    """Profiles ten steps of this process's first epoch, on every rank."""

    wanted: bool
    folder: Path
    devices: Devices

    def watch(self, batches: Iterator[DeviceBatch], steps: int) -> Iterator[DeviceBatch]:
        """Yields the same `steps` batches; a step lasts from one batch to the next."""
        if not self.wanted:
            yield from batches
            return
        self.wanted = False
        skipped = min(SKIPPED_STEPS, max(0, steps - PROFILED_STEPS - 1))
        plan = schedule(skip_first=skipped, wait=0, warmup=1, active=PROFILED_STEPS, repeat=1)
        activities = [ProfilerActivity.CPU]
        if self.devices.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        else:
            # Kineto reads this at its first use; otherwise it logs that there is no GPU.
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        with profile(
            activities=activities,
            schedule=plan,
            on_trace_ready=self._write,
            acc_events=True,
            experimental_config=_ExperimentalConfig(profile_all_threads=True),
        ) as profiler:
            for number, batch in enumerate(batches, 1):
                yield batch
                if number < steps:  # what follows the last step is not a step
                    profiler.step()

    def _write(self, profiler: profile) -> None:
        rank = self.devices.rank
        path = self.folder / f"rank{rank}.{time.time_ns() // 1_000_000}.pt.trace.json.gz"
        with replacing(path) as temporary:
            profiler.export_chrome_trace(str(temporary))
        with gzip.open(path, "rt", encoding="utf-8") as file:
            ranges = range_table(json.load(file))
        of_gpu = self.devices.device.type == "cuda"
        operators = profiler.key_averages().table(
            sort_by="self_device_time_total" if of_gpu else "self_cpu_time_total",
            row_limit=TOP,
            max_name_column_width=60,
        )
        text = [*ranges, "", f"The {TOP} most expensive operators:", operators]
        write_text(self.folder / f"rank{rank}.txt", "\n".join(text))
        for line in [*ranges, f"trace {path}: open it in https://ui.perfetto.dev"]:
            logger.info(line)


def range_table(trace: Trace) -> list[str]:
    """Returns the milliseconds per step of each named range, of all threads together.

    On a GPU a range has two times: the host's, which only launches kernels, and the GPU's.
    """
    names = [e["name"] for e in trace["traceEvents"] if e.get("cat") == "user_annotation"]
    steps = sum(name.startswith("ProfilerStep#") for name in names) or 1
    host = _milliseconds(trace, "user_annotation")
    gpu = _milliseconds(trace, "gpu_user_annotation")
    head, columns = ["ms/step"], [host]
    if any(gpu.values()):
        head, columns = ["host ms/step", "GPU ms/step"], [host, gpu]
    title = f"profile of {counted(steps, 'step')}"
    return [f"{title:26}{'calls/step':>11}" + "".join(f"{name:>14}" for name in head)] + [
        f"{name:26}{len(times) / steps:>11.1f}"
        + "".join(f"{sum(column.get(name, ())) / steps:>14.3f}" for column in columns)
        for name, times in host.items()
        if times
    ]


def _milliseconds(trace: Trace, category: str) -> dict[str, list[float]]:
    """Returns how long each call of each named range took."""
    events = [event for event in trace["traceEvents"] if event.get("cat") == category]
    return {
        name: [event["dur"] / 1e3 for event in events if event["name"] == name]
        for name in STEP_RANGES + PIPELINE_RANGES
    }
