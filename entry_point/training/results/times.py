"""Where the time goes: of the start of a job, and of each step."""

from __future__ import annotations

import logging
import math
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from entry_point.job.devices import Devices
from entry_point.job.metrics_line import PERCENTILES, STEP_PARTS
from entry_point.training.results.log import Record

logger = logging.getLogger(__name__)

STARTING_STEPS = 10
Times = NDArray[np.float32]
"""Seconds, `(steps, len(STEP_PARTS))`.

`step` is the time from the end of one step to the end of the next, without logging and checkpoints.
On a GPU, `step`, `copy` and `compute` are times of its streams. Copies overlap with the previous
step's compute, so the parts may sum to more. `data_wait` is the host's wait for the batch, as far
as the device stood idle: a host that is ahead of its GPU may wait without slowing it.
"""


def finish(device: torch.device) -> None:
    """Wait until the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Moment:
    """Now, by the clock of `device`: on a GPU, when the current stream gets here.

    On a CPU it reads the clock. On a GPU it records an event, which costs no synchronization; only
    `seconds_since` waits, without keeping a core busy.
    """

    def __init__(self, device: torch.device) -> None:
        self._time, self._event = 0.0, None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True, blocking=True)
            self._event.record()
        else:
            self._time = time.perf_counter()

    def seconds_since(self, earlier: Moment) -> float:
        """Returns the seconds from a moment of the same stream to this one."""
        if self._event is None or earlier._event is None:
            return self._time - earlier._time
        self._event.synchronize()
        return float(earlier._event.elapsed_time(self._event)) / 1000


class Stopwatch:
    """`with Stopwatch(device) as watch: ...` measures the seconds of a block on its device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __enter__(self) -> Stopwatch:
        self._began = Moment(self._device)
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended = Moment(self._device)

    @property
    def seconds(self) -> float:
        return self._ended.seconds_since(self._began)


class StallMeter:
    """This rank's step times, for the current epoch and for the whole process."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._waiting: list[tuple[float, Stopwatch, Stopwatch, Moment, Moment]] = []
        self._times, self._input_cpu = array("f"), array("f")
        self._epoch_began = 0
        self._waited = 0.0
        self._step_began = Moment(devices.device)

    def begin_epoch(self) -> None:
        """The next step starts now."""
        self.waited()
        self._epoch_began = len(self._times)
        self._step_began = Moment(self._devices.device)

    def add(
        self, wait: float, copying: Stopwatch, computing: Stopwatch, input_cpu: float = math.nan
    ) -> None:
        """Count one step, which ends now: the seconds of wait, its other parts' stopwatches, and
        the seconds of CPU time that its input took."""
        now = Moment(self._devices.device)
        self._input_cpu.append(input_cpu)
        self._waiting.append((wait, copying, computing, self._step_began, now))
        self._step_began = now

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Exclude a block between two steps, such as logging."""
        yield
        self._step_began = Moment(self._devices.device)

    def settle(self) -> None:
        """Read the stopwatches; on a GPU this waits for the last step."""
        for wait, copying, computing, began, ended in self._waiting:
            step, compute = ended.seconds_since(began), computing.seconds
            wait = min(wait, max(0.0, step - compute))
            self._times.extend((wait, copying.seconds, compute, step))
            self._waited += wait
        self._waiting.clear()

    def waited(self) -> float:
        """Returns the seconds of `data_wait` since this was last asked, or since the epoch
        began."""
        self.settle()
        waited, self._waited = self._waited, 0.0
        return waited

    @property
    def epoch(self) -> Times:
        """This rank's steps of this epoch."""
        self.settle()
        return _rows(self._times[self._epoch_began :])

    @property
    def input_cpu(self) -> float:
        """Seconds of CPU time that the input of a settled step took, on average; NaN if unknown."""
        seconds = settled(np.array(self._input_cpu, np.float32))
        return float(seconds.mean()) if len(seconds) else math.nan

    def settled(self) -> Times:
        """This rank's settled steps of this process."""
        self.settle()
        return settled(_rows(self._times))

    def all_settled(self) -> Times:
        """Returns all ranks' settled steps of this process. A collective call."""
        return np.concatenate(self._devices.gather(self.settled()))

    def record(self) -> Record:
        """Percentiles over all ranks' steps of this epoch, in milliseconds. A collective call."""
        times = np.concatenate(self._devices.gather(self.epoch))
        return {
            f"{part}_ms_p{percentile}": value
            for part, values in percentiles(times).items()
            for percentile, value in zip(PERCENTILES, values, strict=True)
        }


def percentiles(times: Times) -> dict[str, list[float]]:
    """Returns each part's milliseconds at PERCENTILES; empty without steps."""
    if not len(times):
        return {}
    values = 1000 * np.percentile(times, PERCENTILES, axis=0)
    return {part: [round(float(v), 3) for v in values[:, i]] for i, part in enumerate(STEP_PARTS)}


def settled(steps: Times) -> Times:
    """Returns the rows after those of the first steps, in which the pipeline fills and kernels are
    compiled."""
    return steps[min(STARTING_STEPS, len(steps) // 3) :]


def wait_share(times: Times) -> float:
    """Returns the share of the steps' time spent waiting for data, 0 to 1."""
    total = float(times[:, STEP_PARTS.index("step")].sum()) if len(times) else 0.0
    return min(1.0, float(times[:, STEP_PARTS.index("data_wait")].sum()) / total) if total else 0.0


def _rows(flat: array[float]) -> Times:
    return np.array(flat, dtype=np.float32).reshape(-1, len(STEP_PARTS))


class Startup:
    """Marks the end of each part of the start-up; the first, the imports, ends on construction."""

    def __init__(self, began: float) -> None:
        """`began`: when the job began, as `time.time()`."""
        self._began = self._last = began
        self._finished = False
        self._parts: dict[str, float] = {}
        self.mark("imports")

    @property
    def elapsed(self) -> float:
        """Seconds since the job began."""
        return time.time() - self._began

    def mark(self, part: str) -> None:
        """End `part` now; ignored once the start-up is finished."""
        if self._finished:
            return
        now = time.time()
        self._parts[part] = now - self._last
        self._last = now

    def finish(self, part: str) -> None:
        """End the last part and log `startup: imports=1.2s ... total=6.0s`, once."""
        if self._finished:
            return
        self.mark(part)
        self._finished = True
        parts = {**self._parts, "total": self._last - self._began}
        times = " ".join(f"{name}={seconds:.1f}s" for name, seconds in parts.items())
        logger.info("startup: %s", times)
