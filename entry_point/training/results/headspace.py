"""How much faster training would be with free input: repeats steps on batches kept in memory.

The idea is SPDL's headspace analysis. Only loading is free: batches still cross to the device.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from typing import NamedTuple

import torch

from entry_point.data.batch import Batch
from entry_point.job.cores import cores_per_rank
from entry_point.job.metrics_line import STEP_PARTS
from entry_point.training.checkpoints import copy_to_cpu
from entry_point.training.learner import Learner
from entry_point.training.results.times import Times, finish, settled, wait_share

KEPT_BATCHES = 8
WARM_UP_STEPS, MOST_STEPS = 3, 50
MOST_SECONDS = 20.0
INPUT_BOUND = 0.05
"""The least share of a step's time that waits for data if input limits training."""

TrainOn = Callable[[Iterator[Batch], float], int]
"""Trains on these batches, at least one, until `time.monotonic()` passes a deadline; returns the
number of steps."""


class Measured(NamedTuple):
    """Two views of the same steps."""

    wait: float
    """Share of the real steps' time spent waiting for data, 0 to 1."""
    speedup: float
    """Seconds of a real step / seconds of a step with free input."""


@dataclass
class Headspace:
    """Keeps some batches of this process's first epoch, and repeats the epoch's steps on them."""

    wanted: bool
    measured: Measured | None = field(default=None, init=False)
    _kept: list[Batch] = field(default_factory=list, init=False)

    def keep(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yields the same batches; the first few are copied as they pass."""
        most = KEPT_BATCHES if self.wanted and self.measured is None else 0
        for batch in batches:
            if len(self._kept) < most:
                copied = replace(batch, images=batch.images.clone(), labels=batch.labels.clone())
                self._kept.append(copied.pin_memory() if batch.images.is_pinned() else copied)
            yield batch

    @property
    def due(self) -> bool:
        return self.wanted and self.measured is None and bool(self._kept)

    def measure(
        self, epoch: Times, learner: Learner, device: torch.device, train: TrainOn
    ) -> Measured:
        """Compare `epoch`, the real steps' times, with steps on the kept batches.

        The learner is restored afterwards.
        """
        deadline = time.monotonic() + MOST_SECONDS
        saved = copy_to_cpu(learner.state())
        try:
            train(islice(cycle(self._kept), WARM_UP_STEPS), deadline)
            finish(device)
            began = time.perf_counter()
            steps = train(islice(cycle(self._kept), MOST_STEPS), deadline)
            finish(device)
            free = (time.perf_counter() - began) / steps
        finally:  # a job that is stopped here exports its model
            learner.load_state(saved)
        self._kept.clear()
        steady = settled(epoch)
        seconds = float(steady[:, STEP_PARTS.index("step")].mean())
        self.measured = Measured(wait_share(steady), seconds / free)
        return self.measured


def verdict(
    wait: float,
    speedup: float | None = None,
    cores: str = "",
    *,
    when: str = "after the first steps, ",
) -> str:
    """Returns one line on whether input limits training. `wait` is a share of the time, 0 to 1, and
    `when` says of which time; `cores` is what `cores_needed` returned."""
    waits = f"{when}training waits for data {100 * wait:.1f} % of the time"
    faster = f"free input would make training {speedup:.1f}x faster" if speedup else ""
    if speedup is None:
        line = f"{'input-bound' if wait >= INPUT_BOUND else 'not input-bound'}: {waits}"
    elif speedup < 1.1:
        same = f"free input would not make training faster ({speedup:.2f}x)"
        line = f"not input-bound: {waits}; {same}"
    elif wait < INPUT_BOUND:
        line = f"input takes CPU time from training: {waits}, but {faster}"
    else:
        line = f"input-bound: {waits}; {faster}"
    return f"{line}; {cores}" if cores else line


def cores_needed(
    steps: Times, images: int, input_cpu: float, speedup: float | None = None, ranks: int = 1
) -> str:
    """Returns how many cores the input of a rank needs, so that its steps wait for none.

    `steps` are settled ones, of `images` each, whose input took `input_cpu` seconds of CPU time.
    `speedup` is what free input would bring, if that was measured. Empty if nothing is known.
    """
    if not len(steps) or math.isnan(input_cpu):
        return ""
    step, wait = (float(steps[:, STEP_PARTS.index(part)].mean()) for part in ("step", "data_wait"))
    free = step / speedup if speedup else max(step - wait, 0.01 * step)
    of_rank, cores = " per rank" if ranks > 1 else "", input_cpu / free
    count = f"{cores:.{1 if cores >= 1 else 2}f}" if cores >= 0.05 else "less than 0.05"
    rate = f"{images / free:,.0f} images/s{of_rank}"
    return f"{rate} need {count} cores for input; {cores_per_rank()} available"
