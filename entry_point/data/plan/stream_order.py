"""Plans which samples each step takes when shards are read in sequence (data.access=stream).

The order depends only on the index: shards are shuffled, each rank takes an equal slice of the
sequence, and samples are shuffled within windows of a few shards. An epoch can
start at any step. At most three windows are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from entry_point.config.config_errors import ConfigError
from entry_point.data.plan.order import steps_of
from entry_point.data.plan.philox import permutation, stream_words
from entry_point.data.plan.samples import Ints

WINDOW_SHARDS = 2
"""Number of shards among which samples are shuffled; memory holds three such windows."""
_SHARD_STREAM, _WINDOW_STREAM = 31, 32
_WINDOW_BITS, _CHANCE_BITS = np.uint64(24), np.uint64(40)


class Shards(Protocol):
    """Shards of a split, see StreamSource."""

    @property
    def shard_of(self) -> NDArray[np.integer]: ...
    def hold(self, reader: ThreadPoolExecutor, shards: Sequence[int]) -> None: ...
    def release(self) -> None: ...


class StreamPlan:
    """One rank's plan for shards that are read in sequence."""

    def __init__(
        self,
        source: Shards,
        rank: int,
        ranks: int,
        *,
        batch_size: int,
        seed: int,
        train: bool,
        window_shards: int = WINDOW_SHARDS,
    ) -> None:
        self._source, self._rank, self._ranks = source, rank, ranks
        self._batch_size, self._seed, self._train = batch_size, seed, train
        self._window_shards = window_shards
        self._read: Callable[[Sequence[int]], None] | None = None
        self._last_window: list[int] = []
        by_shard = np.argsort(source.shard_of, kind="stable")
        _, starts = np.unique(source.shard_of[by_shard], return_index=True)
        self._rows = np.split(by_shard, starts[1:])
        if train and not self.steps_per_epoch:
            share = self.samples_per_epoch
            message = (
                f"must be at most {share * ranks}, as each rank streams {share} training images"
            )
            raise ConfigError("trainer.batch_size", batch_size * ranks, message)

    @property
    def samples_per_epoch(self) -> int:
        first, end = self._slice()
        return end - first

    @property
    def steps_per_epoch(self) -> int:
        return steps_of(self.samples_per_epoch, self._batch_size, self._train)

    def read_ahead(self, reader: ThreadPoolExecutor) -> None:
        self._read = partial(self._source.hold, reader)

    def batches(self, epoch: int, start_step: int = 0) -> Iterator[Ints]:
        order, windows = self._order(epoch)
        current = None
        for step in range(start_step, self.steps_per_epoch):
            batch = slice(step * self._batch_size, (step + 1) * self._batch_size)
            first, window = windows[batch][[0, -1]].tolist()
            if self._read is not None and window != current:
                # Hold the current window, the next, and the previous for batches in progress; the
                # previous window may belong to the epoch before.
                since = first if current is None else min(first, current)
                before = self._last_window if current is None else []
                around = self._shards(order, windows, since, window + 2)
                self._read(list(dict.fromkeys([*around, *before])))
                self._last_window = self._shards(order, windows, window, window + 1)
                current = window
            yield order[batch]

    def _shards(self, order: Ints, windows: Ints, first: int, end: int) -> list[int]:
        """Returns the shards of the windows from `first` to `end` - 1, each once, in order."""
        samples = order[slice(*np.searchsorted(windows, [first, end]))]
        return list(dict.fromkeys(self._source.shard_of[samples].tolist()))

    def release(self) -> None:
        self._last_window = []
        self._source.release()

    def _slice(self) -> tuple[int, int]:
        """Returns the start and end of this rank's samples in the epoch's sequence."""
        count, rank, ranks = len(self._source.shard_of), self._rank, self._ranks
        if not self._train:
            return count * rank // ranks, count * (rank + 1) // ranks
        each = count // ranks
        return rank * each, (rank + 1) * each

    def _order(self, epoch: int) -> tuple[Ints, Ints]:
        """Returns this rank's samples and the window of each."""
        first, end = self._slice()
        if not self._train:
            order = np.arange(first, end)
            return order, self._windows(order)
        shuffled = permutation((self._seed, _SHARD_STREAM), len(self._rows), epoch)
        order = np.concatenate([self._rows[number] for number in shuffled])[first:end]
        windows = self._windows(order)
        total = len(self._source.shard_of)
        chance = stream_words((self._seed, _WINDOW_STREAM), epoch, 0, total)[order]
        place = windows.astype(np.uint64) << _CHANCE_BITS | chance >> _WINDOW_BITS
        within = np.argsort(place, kind="stable")
        return order[within], windows[within]

    def _windows(self, order: Ints) -> Ints:
        """Returns each sample's window number; `window_shards` adjacent shards are a window."""
        shard = self._source.shard_of[order]
        return np.cumsum(np.diff(shard, prepend=shard[:1]) != 0) // self._window_shards
