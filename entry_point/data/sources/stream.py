"""Shards read whole and in order, for file systems where seeking costs (FastFile, networks).

The order of an epoch follows from the index alone: shards are shuffled, the ranks take equal cuts
of the sequence, and samples are shuffled within windows of a few shards. So any step can be the
first, and what is in memory is never more than three windows.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, distributed

from entry_point.data.errors import DataError
from entry_point.data.plan.philox import permutation, stream_words
from entry_point.data.sources.file_bytes import read_part, read_through
from entry_point.data.sources.shards import ShardIndex, require_shard

_SHARD_STREAM, _WINDOW_STREAM = 31, 32
_WINDOW_BITS, _CHANCE_BITS = np.uint64(24), np.uint64(40)

Ints = NDArray[np.int64]


class StreamSource:
    """The samples of the shards that are here; single reads where no shard is in memory."""

    def __init__(self, root: Path, index_root: Path, split: str, all_here: bool) -> None:
        self.index = ShardIndex(index_root, split)
        self.classes, self.labels = self.index.classes, self.index.labels
        self.sizes = self.index.sizes
        self.folder = root / split
        self.shards_here = self._shards_here(all_here)
        self._memory: dict[int, Future[Tensor]] = {}
        self._cached: dict[int, Future[None]] = {}

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def rows_here(self) -> Ints:
        """The samples of the shards that are here."""
        return np.flatnonzero(np.isin(self.index.shard, self.shards_here))

    def key(self, index: int) -> str:
        return self.index.key(index)

    def read(self, index: int) -> Tensor:
        number = int(self.index.shard[index])
        start, length = int(self.index.offsets[index]), int(self.index.lengths[index])
        whole = self._memory.get(number)
        try:
            if whole is not None:
                return whole.result()[start : start + length]
        except CancelledError:  # the epoch was left while its shards were being read
            pass
        return read_part(str(self.folder / self.index.shards[number].file), start, length)

    def following(self, indices: Ints) -> Ints:
        """The next of the shards that are here."""
        place = np.searchsorted(self.rows_here, indices, side="right")
        return self.rows_here[place % len(self.rows_here)]

    def hold(self, reader: ThreadPoolExecutor, shards: Sequence[int]) -> None:
        """Have these shards in memory, read one after the other by `reader`, and no others."""
        for number in shards:
            if number not in self._memory or self._memory[number].cancelled():
                shard = self.index.shards[number]
                file = str(self.folder / shard.file)
                self._memory[number] = reader.submit(read_part, file, 0, shard.bytes)
        for number in set(self._memory) - set(shards):
            self._memory.pop(number).cancel()

    def cache(self, reader: ThreadPoolExecutor, shards: Sequence[int]) -> None:
        """Have these shards in the page cache, where other processes find them."""
        for number in shards:
            if number not in self._cached or self._cached[number].cancelled():
                file = str(self.folder / self.index.shards[number].file)
                self._cached[number] = reader.submit(read_through, file)
        for number in set(self._cached) - set(shards):
            self._cached.pop(number).cancel()

    def release(self) -> None:
        """Let go of all shards."""
        for kept in (self._memory, self._cached):
            while kept:
                kept.popitem()[1].cancel()

    def __getstate__(self) -> dict[str, Any]:
        """Another process reads for itself."""
        return vars(self) | {"_memory": {}, "_cached": {}}

    def _shards_here(self, all_here: bool) -> list[int]:
        """Numbers of the shards in the folder; a host with ShardedByS3Key has only some."""
        here = [
            number
            for number, shard in enumerate(self.index.shards)
            if all_here or (self.folder / shard.file).exists()
        ]
        for number in here:
            require_shard(self.folder, self.index.shards[number])
        return here


@dataclass(frozen=True)
class Share:
    """One rank's part of the shards that are here."""

    rank: int
    """Among the ranks that read the same shards."""
    ranks: int
    samples: int | None = None
    """Training samples that every rank has; None: an equal part of those here."""


def share_of_host(source: StreamSource) -> Share:
    """The share of a rank whose host has shards of its own: cut among the host's ranks.

    Hosts may have different numbers of samples; in training all ranks take as many as the one
    with the fewest. A collective call.

    Raises:
        DataError: on all ranks, for a shard that is on no host or on more than one.
    """
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    mine = (rank, source.shards_here, len(source.rows_here) // ranks)
    everyone = [mine]
    if distributed.is_available() and distributed.is_initialized():
        everyone = [mine] * distributed.get_world_size()
        distributed.all_gather_object(everyone, mine)
    hosts = [shards for local, shards, _ in everyone if local == 0]
    _require_each_once(source, hosts)
    return Share(rank, ranks, min(each for *_, each in everyone))


def _require_each_once(source: StreamSource, hosts: list[list[int]]) -> None:
    """Else validation would miss samples, or take some twice."""
    copies = Counter(number for shards in hosts for number in shards)
    for number, shard in enumerate(source.index.shards):
        if copies[number] == 1:
            continue
        where = f"on {copies[number]} of {len(hosts)} hosts" if copies[number] else "on no host"
        raise DataError(
            f"{source.folder / shard.file} is {where}: data.sharded_by_host=true needs each "
            "shard on one of them (a channel with S3DataDistributionType=ShardedByS3Key)"
        )


class StreamPlan:
    """The order of an epoch of one rank; like EpochPlan, for shards that are read in order."""

    def __init__(
        self,
        source: StreamSource,
        share: Share,
        *,
        batch_size: int,
        seed: int,
        train: bool,
        window_shards: int,
    ) -> None:
        self._source, self._share = source, share
        self._batch_size, self._seed, self._train = batch_size, seed, train
        self._window_shards = window_shards
        self._have: Callable[[Sequence[int]], None] | None = None
        by_shard = np.argsort(source.index.shard, kind="stable")
        starts = np.searchsorted(source.index.shard[by_shard], np.arange(len(source.index.shards)))
        rows = np.split(by_shard, starts[1:])
        self._rows = [rows[number] for number in source.shards_here]
        if train and not self.steps_per_epoch:
            raise DataError(
                f"a rank's share of the train split is {self.samples_per_epoch} images, fewer "
                f"than one batch of {batch_size}: lower the batch size, or pack smaller shards "
                "(shard_mb) so that every host gets some"
            )

    @property
    def samples_per_epoch(self) -> int:
        first, end = self._cut()
        return end - first

    @property
    def steps_per_epoch(self) -> int:
        steps, rest = divmod(self.samples_per_epoch, self._batch_size)
        return steps if self._train else steps + bool(rest)

    def read_ahead(self, reader: ThreadPoolExecutor, *, here: bool) -> None:
        """Have windows read as their turn comes."""
        self._have = partial(self._source.hold if here else self._source.cache, reader)

    def batches(self, epoch: int, start_step: int = 0) -> Iterator[Ints]:
        """Sample indices, int64 (batch,), of every step from `start_step` on."""
        order, windows = self._order(epoch)
        held = None
        for step in range(start_step, self.steps_per_epoch):
            batch = slice(step * self._batch_size, (step + 1) * self._batch_size)
            first, window = windows[batch][[0, -1]].tolist()
            if self._have is not None and window != held:
                # The window in use, the one after, and the one before for batches in the making.
                since = first if held is None else min(first, held)
                around = slice(*np.searchsorted(windows, [since, window + 2]))
                shards = dict.fromkeys(self._source.index.shard[order[around]].tolist())
                self._have(list(shards))
                held = window
            yield order[batch]

    def release(self) -> None:
        """Let go of what was read ahead."""
        self._source.release()

    def _cut(self) -> tuple[int, int]:
        """First and end of this rank's samples in the epoch's sequence."""
        count = sum(len(rows) for rows in self._rows)
        if not self._train:
            first = count * self._share.rank // self._share.ranks
            return first, count * (self._share.rank + 1) // self._share.ranks
        each = self._share.samples
        if each is None:
            each = count // self._share.ranks
        return self._share.rank * each, (self._share.rank + 1) * each

    def _order(self, epoch: int) -> tuple[Ints, Ints]:
        """This rank's samples and the window that each belongs to."""
        first, end = self._cut()
        if not self._train:
            order = self._source.rows_here[first:end]
            return order, self._windows(order)
        shuffled = permutation((self._seed, _SHARD_STREAM), len(self._rows), epoch)
        order = np.concatenate([self._rows[number] for number in shuffled])[first:end]
        windows = self._windows(order)
        chance = stream_words((self._seed, _WINDOW_STREAM), epoch, 0, len(self._source))[order]
        place = windows.astype(np.uint64) << _CHANCE_BITS | chance >> _WINDOW_BITS
        within = np.argsort(place, kind="stable")
        return order[within], windows[within]

    def _windows(self, order: Ints) -> Ints:
        """Windows are so many shards that follow one another."""
        shard = self._source.index.shard[order]
        return np.cumsum(np.diff(shard, prepend=shard[:1]) != 0) // self._window_shards
