"""Where the time of each step goes: waiting for data, copying to the device, computing."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from entry_point.contract.metrics_line import PERCENTILES, STEP_PARTS
from entry_point.training.devices import Devices
from entry_point.training.measure.stopwatch import Stopwatch, finish
from entry_point.training.results.metrics_log import Record

Times = NDArray[np.float32]
"""Seconds, `(steps, len(STEP_PARTS))`. `step` is all of a step by the clock, what lies between its
parts included, logging and checkpoints left out; on a GPU copies run beside the computing of the
step before, so the parts may sum to more."""


class StallMeter:
    """Every step's times on this rank, for the epoch under way and for the whole process."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._waiting: list[tuple[float, Stopwatch, Stopwatch, float]] = []
        self._times = array("f")
        self._epoch_began = 0
        self._last = time.perf_counter()

    def begin_epoch(self) -> None:
        """The next step's time begins now."""
        self.settle()
        self._epoch_began = len(self._times)
        self._last = time.perf_counter()

    def add(self, wait: float, copying: Stopwatch, computing: Stopwatch) -> None:
        """Count one step, which ends now: seconds of wait, and the watches of its other parts."""
        now = time.perf_counter()
        self._waiting.append((wait, copying, computing, now - self._last))
        self._last = now

    @contextmanager
    def pause(self) -> Iterator[None]:
        """For what is done between two steps and is part of none, when the last one is finished."""
        finish(self._devices.device)
        began = time.perf_counter()
        yield
        self._last += time.perf_counter() - began

    def settle(self) -> None:
        """Read the watches; on a GPU this waits for the last step."""
        for wait, copying, computing, step in self._waiting:
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
    """Per part the milliseconds below which 50, 90 and 99 % of the steps stay."""
    if not len(times):
        return {}
    values = 1000 * np.percentile(times, PERCENTILES, axis=0)
    return {part: [round(float(v), 3) for v in values[:, i]] for i, part in enumerate(STEP_PARTS)}


def wait_share(times: Times) -> float:
    """Share of the steps' time that was spent waiting for data."""
    total = float(times[:, STEP_PARTS.index("step")].sum()) if len(times) else 0.0
    return min(1.0, float(times[:, STEP_PARTS.index("data_wait")].sum()) / total) if total else 0.0


def _rows(flat: array[float]) -> Times:
    return np.array(flat, dtype=np.float32).reshape(-1, len(STEP_PARTS))
