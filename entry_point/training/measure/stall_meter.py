"""Where the time of each step goes: waiting for data, copying to the device, computing."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from entry_point.contract.metrics_line import PERCENTILES, STEP_PARTS
from entry_point.training.devices import Devices
from entry_point.training.measure.stopwatch import Moment, Stopwatch
from entry_point.training.results.metrics_log import Record

Times = NDArray[np.float32]
"""Seconds, `(steps, len(STEP_PARTS))`.

`step` is the time from the end of one step to the end of the next, without logging and checkpoints.
On a GPU, `step`, `copy` and `compute` are times of its streams. Copies overlap with the previous
step's compute, so the parts may sum to more.
"""


class StallMeter:
    """This rank's step times, for the current epoch and for the whole process."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._waiting: list[tuple[float, Stopwatch, Stopwatch, Moment, Moment]] = []
        self._times = array("f")
        self._epoch_began = 0
        self._step_began = Moment(devices.device)

    def begin_epoch(self) -> None:
        """The next step starts now."""
        self.settle()
        self._epoch_began = len(self._times)
        self._step_began = Moment(self._devices.device)

    def add(self, wait: float, copying: Stopwatch, computing: Stopwatch) -> None:
        """Count one step, which ends now: the seconds of wait, and its other parts' stopwatches."""
        now = Moment(self._devices.device)
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
            step = ended.seconds_since(began)
            self._times.extend((wait, copying.seconds, computing.seconds, step))
        self._waiting.clear()

    @property
    def epoch(self) -> Times:
        """This rank's steps of this epoch."""
        self.settle()
        return _rows(self._times[self._epoch_began :])

    def all(self) -> Times:
        """All ranks' steps of this process. A collective call."""
        self.settle()
        return self._of_all_ranks(_rows(self._times))

    def record(self) -> Record:
        """Percentiles over all ranks' steps of this epoch, in milliseconds. A collective call."""
        return {
            f"{part}_ms_p{percentile}": value
            for part, values in percentiles(self._of_all_ranks(self.epoch)).items()
            for percentile, value in zip(PERCENTILES, values, strict=True)
        }

    def _of_all_ranks(self, times: Times) -> Times:
        return np.concatenate(self._devices.gather(times))


def percentiles(times: Times) -> dict[str, list[float]]:
    """Each part's milliseconds at PERCENTILES; empty without steps."""
    if not len(times):
        return {}
    values = 1000 * np.percentile(times, PERCENTILES, axis=0)
    return {part: [round(float(v), 3) for v in values[:, i]] for i, part in enumerate(STEP_PARTS)}


def wait_share(times: Times) -> float:
    """The share of the steps' time spent waiting for data, 0 to 1."""
    total = float(times[:, STEP_PARTS.index("step")].sum()) if len(times) else 0.0
    return min(1.0, float(times[:, STEP_PARTS.index("data_wait")].sum()) / total) if total else 0.0


def _rows(flat: array[float]) -> Times:
    return np.array(flat, dtype=np.float32).reshape(-1, len(STEP_PARTS))
