"""The training program, whose last epoch trains on batches kept in memory.

`python -m benchmarks.gpu.memory_jobs OVERRIDES`. That epoch says how fast training is if its input
is free. The idea is SPDL's headspace analysis. Only loading is free: batches still cross to the
device.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

from entry_point import train
from entry_point.data.batch import Batch
from entry_point.training import trainer
from entry_point.training.input import TrainingInput

KEPT_BATCHES = 8


class LastEpochFromMemory(TrainingInput):
    def __init__(self, *of_trainer: Any) -> None:
        super().__init__(*of_trainer)
        self._in_memory: list[Batch] = []

    def train_batches(self, epoch: int, step: int) -> Iterator[Batch]:
        if epoch == self._config.trainer.epochs - 1:
            steps = self.train_loader.steps_per_epoch - step
            yield from islice(cycle(self._in_memory), steps)
            return
        for batch in super().train_batches(epoch, step):
            if len(self._in_memory) < KEPT_BATCHES:
                # The loader reuses its memory.
                copy = replace(batch, images=batch.images.clone(), labels=batch.labels.clone())
                pinned = batch.images.is_pinned()
                self._in_memory.append(copy.pin_memory() if pinned else copy)
            yield batch


def main(overrides: list[str]) -> int:
    """Trains as `train` does; returns its exit code."""
    trainer.TrainingInput = LastEpochFromMemory  # type: ignore[attr-defined,assignment]
    return train.main(overrides)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
