"""`trainer.diagnose=profile`: traces some steps with torch, and writes a table of their time."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, schedule

from entry_point.job.devices import Devices
from entry_point.job.whole_file import replacing, write_text
from entry_point.training.input import DeviceBatch

logger = logging.getLogger(__name__)

SKIPPED_STEPS, PROFILED_STEPS = 10, 10


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
            # Kineto, which reads this at its first use, would log that there is no GPU.
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
                if number < steps:  # no step begins after the last
                    profiler.step()

    def _write(self, profiler: profile) -> None:
        rank = self.devices.rank
        path = self.folder / f"rank{rank}.{time.time_ns() // 1_000_000}.pt.trace.json.gz"
        with replacing(path) as temporary:
            profiler.export_chrome_trace(str(temporary))
        device = "device" if self.devices.device.type == "cuda" else "cpu"
        # All rows, because parts of a step may take less time than many operators.
        table = profiler.key_averages().table(
            sort_by=f"{device}_time_total", row_limit=-1, max_name_column_width=60
        )
        write_text(self.folder / f"rank{rank}.txt", table)
        logger.info("trace %s: open it in https://ui.perfetto.dev; a table beside it", path)
