"""A run's totals, without evaluations: training time, throughput, step times, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from entry_point.job.cores import cores_per_rank
from entry_point.training.results.log import Record, training_records
from entry_point.training.results.times import COLUMNS, Times

INPUT_BOUND = 0.05
"""Share of the step time spent waiting for data from which a run counts as input-bound."""
SHORTEST_S = 10.0
"""Seconds of training below which no verdict is given: most of the wait is for first batches."""


@dataclass(frozen=True)
class Totals:
    """Totals of the whole run, from its records; step times are of this process only."""

    records: Sequence[Record]
    images_per_step: int
    steps: Times = field(default_factory=lambda: np.empty((0, len(COLUMNS)), np.float32))
    """All ranks' settled steps of this process; empty if a finished run was started again."""
    ranks: int = 1
    resumed_at: int = 0
    """The step of the checkpoint that this process resumed from; 0 if it began the run."""
    may_compile: bool = False
    """Whether compilation could make the steps faster."""

    @cached_property
    def _intervals(self) -> list[tuple[int, float, float]]:
        """Returns images, seconds and the share of waiting of each log interval."""
        intervals, before = [], 0
        for record in training_records(self.records):
            images = (int(record["step"]) - before) * self.images_per_step
            before = int(record["step"])
            if record["images_per_s"]:
                seconds = images / record["images_per_s"]
                intervals.append((images, seconds, record["data_wait_pct"] / 100))
        return intervals

    @property
    def training_seconds(self) -> float:
        """Returns the training time of all starts, without steps lost in interruptions."""
        return sum(seconds for _, seconds, _ in self._intervals)

    @property
    def images_per_s(self) -> float:
        images = sum(images for images, _, _ in self._intervals)
        return images / self.training_seconds if self._intervals else 0.0

    @property
    def data_wait_pct(self) -> float:
        waited = sum(seconds * share for _, seconds, share in self._intervals)
        return 100 * waited / self.training_seconds if self._intervals else 0.0

    @property
    def verdict(self) -> str:
        """Returns whether input limits training, how many cores it needs, and what would be
        faster."""
        if (seconds := self.training_seconds) < SHORTEST_S:
            return f"too short to judge: {seconds:.1f} s of training, {SHORTEST_S:.0f} s are needed"
        share, of = self.data_wait_pct / 100, ""
        if len(self.steps):
            wait, step, _ = map(float, self.steps.sum(axis=0))
            share, of = wait / step, "after the first steps, "
        bound = share >= INPUT_BOUND
        waits = f"input-bound: {of}training waits for data {100 * share:.1f} % of the time"
        parts = [waits if bound else f"not {waits}", self._cores_needed()]
        if bound:
            parts.append("photos much larger than a sample load faster if packed with `max_side`")
        elif self.may_compile:
            parts.append(
                "trainer.compile=default usually makes such steps 1.2 to 1.4 times as fast"
            )
        return "; ".join(filter(None, parts))

    def _cores_needed(self) -> str:
        """Returns how many cores the input of a rank needs so that no step waits; empty if
        unknown."""
        if not len(self.steps) or np.isnan(self.steps).any():
            return ""
        wait, step, input_cpu = map(float, self.steps.mean(axis=0))
        free = max(step - wait, 0.01 * step)
        of_rank, cores = " per rank" if self.ranks > 1 else "", input_cpu / free
        count = f"{cores:.{1 if cores >= 1 else 2}f}" if cores >= 0.05 else "less than 0.05"
        rate = f"{self.images_per_step // self.ranks / free:,.0f} images/s{of_rank}"
        return f"{rate} need {count} cores for input; {cores_per_rank()} available"
