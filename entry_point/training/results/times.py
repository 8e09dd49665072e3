"""Measures how long steps take, and how long they wait for data."""

from __future__ import annotations

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

STARTING_STEPS = 10

COLUMNS = (*STEP_PARTS, "input_cpu")
Times = NDArray[np.float32]
"""Seconds, `(steps, len(COLUMNS))`.

`step` is the time from the end of one step to the end of the next, without logging and checkpoints;
on a GPU, by the clock of its stream. `data_wait` is the host's wait for the batch while the device
was idle: a host that is ahead of its GPU may wait without slowing it down. `input_cpu` is the CPU
time that the batch took, NaN if unknown.
"""


class Moment:
    """A point in time, the moment of its creation, by the clock of `device`.

    On a CPU it reads the clock. On a GPU it records an event in the current stream, which costs no
    synchronization; only `seconds_since` waits, without keeping a core busy.
    """

    def __init__(self, device: torch.device) -> None:
        self._time, self._event = 0.0, None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True, blocking=True)
            self._event.record()
        else:
            self._time = time.perf_counter()

    def seconds_since(self, earlier: Moment) -> float:
        """Returns the seconds from an earlier moment of the same stream to this one."""
        if self._event is None or earlier._event is None:
            return self._time - earlier._time
        self._event.synchronize()
        return float(earlier._event.elapsed_time(self._event)) / 1000


class StallMeter:
    """This rank's step times, for the current epoch and for the whole process."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._unread: list[tuple[Moment, Moment, Moment, float, float]] = []
        """Steps that the GPU may not have completed: begin, begin of computing, end, wait,
        input_cpu."""
        self._times = array("f")
        self._epoch_began = 0
        self._waited = 0.0
        self._step_began = Moment(devices.device)

    def begin_epoch(self) -> None:
        """Start the epoch's first step."""
        self.waited()
        self._epoch_began = len(self._times)
        self._step_began = Moment(self._devices.device)

    def add(self, wait: float, computing: Moment, input_cpu: float) -> None:
        """Add a step, which ends now. `wait`: seconds that the host waited for the batch;
        `computing`: when computing began; `input_cpu`: seconds of CPU time that the batch took."""
        now = Moment(self._devices.device)
        self._unread.append((self._step_began, computing, now, wait, input_cpu))
        self._step_began = now

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Exclude the time of a block between two steps, such as logging."""
        yield
        self._step_began = Moment(self._devices.device)

    def settle(self) -> None:
        """Compute the times of all steps; on a GPU, wait for the last one."""
        for began, computing, ended, wait, input_cpu in self._unread:
            step = ended.seconds_since(began)
            idle = max(0.0, step - ended.seconds_since(computing))
            self._times.extend((min(wait, idle), step, input_cpu))
            self._waited += min(wait, idle)
        self._unread.clear()

    def waited(self) -> float:
        """Returns the seconds of `data_wait` since the last call in this epoch, or since its
        begin."""
        self.settle()
        waited, self._waited = self._waited, 0.0
        return waited

    @property
    def epoch(self) -> Times:
        """Returns the times of this rank's steps in this epoch."""
        self.settle()
        return _rows(self._times[self._epoch_began :])

    def all_settled(self) -> Times:
        """Returns the times of all ranks' settled steps since they started. A collective call."""
        self.settle()
        return np.concatenate(self._devices.gather(settled(_rows(self._times))))

    def record(self) -> Record:
        """Returns percentiles over all ranks' steps in this epoch, in milliseconds. A collective
        call."""
        times = np.concatenate(self._devices.gather(self.epoch))
        return {
            f"{part}_ms_p{percentile}": value
            for part, values in percentiles(times).items()
            for percentile, value in zip(PERCENTILES, values, strict=True)
        }


def _rows(flat: array[float]) -> Times:
    return np.array(flat, dtype=np.float32).reshape(-1, len(COLUMNS))


def settled(steps: Times) -> Times:
    """Returns the rows without the first steps, in which the pipeline fills and kernels are
    compiled."""
    return steps[min(STARTING_STEPS, len(steps) // 3) :]


def percentiles(times: Times) -> dict[str, list[float]]:
    """Returns the milliseconds of each column at PERCENTILES; empty without steps."""
    if not len(times):
        return {}
    values = 1000 * np.percentile(times, PERCENTILES, axis=0)
    return {part: [round(float(v), 3) for v in values[:, i]] for i, part in enumerate(STEP_PARTS)}
