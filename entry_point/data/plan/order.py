"""Which samples each step of each rank takes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from entry_point.data.errors import DataError
from entry_point.data.plan.philox import permutation

_ORDER_STREAM = 0


class Plan(Protocol):
    """Which samples each step of one rank takes; any step can be the first."""

    @property
    def samples_per_epoch(self) -> int: ...

    @property
    def steps_per_epoch(self) -> int: ...

    def batches(self, epoch: int, start_step: int = 0) -> Iterator[NDArray[np.int64]]:
        """Sample indices, int64 (batch,), of every step from `start_step` on."""
        ...

    def read_ahead(self, reader: ThreadPoolExecutor, *, here: bool) -> None:
        """Have what the coming steps need read by `reader`.

        Into this process's memory if images are decoded `here`, else into the page cache.
        """
        ...

    def release(self) -> None:
        """Let go of what was read ahead; nobody needs it until the next epoch."""
        ...


@dataclass(frozen=True)
class EpochPlan:
    """The order of an epoch, a function of (seed, epoch); any step can be the first.

    Training shuffles and drops what does not fill a step of all ranks; a step takes the next
    batch_size * world_size samples of the order and each rank its slice of them, so the steps are
    the same for any number of ranks that share the same global batch. Validation deals all samples
    to the ranks in turn, each exactly once: ranks may differ by one step.
    """

    count: int
    batch_size: int
    seed: int
    train: bool
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.train and self.count < self.batch_size * self.world_size:
            raise DataError(
                f"the train split has {self.count} images, fewer than one step of "
                f"{self.batch_size} on {self.world_size} rank(s): lower the batch size"
            )

    @property
    def samples_per_epoch(self) -> int:
        """Samples of this rank."""
        if self.train:
            return self.steps_per_epoch * self.batch_size
        return len(range(self.rank, self.count, self.world_size))

    @property
    def steps_per_epoch(self) -> int:
        if self.train:
            return self.count // (self.batch_size * self.world_size)
        return -(-self.samples_per_epoch // self.batch_size)

    def batches(self, epoch: int, start_step: int = 0) -> Iterator[NDArray[np.int64]]:
        """Sample indices, int64 (batch,), of every step from `start_step` on."""
        if self.train:
            order = permutation((self.seed, _ORDER_STREAM), self.count, epoch)
            first, stride = self.rank * self.batch_size, self.batch_size * self.world_size
        else:
            order = np.arange(self.rank, self.count, self.world_size)
            first, stride = 0, self.batch_size
        for step in range(start_step, self.steps_per_epoch):
            start = first + step * stride
            yield order[start : start + self.batch_size]

    def read_ahead(self, reader: ThreadPoolExecutor, *, here: bool) -> None:
        """Nothing to do: files and maps are read where they are used."""

    def release(self) -> None:
        """Nothing was read ahead."""
