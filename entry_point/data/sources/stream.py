"""Reads shards whole and in order, for file systems on which seeking is slow (FastFile, networks).

`StreamPlan` decides when each shard is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from entry_point.data.errors import DataError
from entry_point.data.plan.samples import Ints
from entry_point.data.retries import with_retries
from entry_point.data.sources.file_bytes import read_bytes
from entry_point.data.sources.rows import Ranges
from entry_point.data.sources.shards import PackedSource
from entry_point.data.sources.source import Source
from entry_point.job.program import ReadError


class StreamSource(Source):
    """Samples in shards, some of which are in memory: the base of streamed sources."""

    shard_files: Sequence[Path]
    shard_of: NDArray[np.integer]
    """Shard number of each sample."""
    _memory: dict[int, Future[Any]]

    def __len__(self) -> int:
        return len(self.shard_of)

    def in_reading_order(self, indices: Ints) -> Ints:
        """Returns the images shard by shard, as shards are read whole, and otherwise in the given
        order."""
        shard_of = self.shard_of[indices]
        _, first = np.unique(shard_of, return_index=True)
        place = np.zeros(shard_of.max() + 1, np.int64)
        place[shard_of[first]] = first
        return indices[np.argsort(place[shard_of], kind="stable")]

    def _read_shard(self, number: int) -> Any:
        """Returns the content of a shard to keep in memory. Raises OSError and DataError."""
        raise NotImplementedError

    def _held(self, index: int) -> Any:
        """Returns the content of the sample's shard; None if it is not in memory."""
        shard = self._memory.get(int(self.shard_of[index]))
        try:
            return None if shard is None else shard.result()
        except CancelledError:  # the epoch ended before the shard was read
            return None

    def hold(self, reader: ThreadPoolExecutor, shards: Sequence[int]) -> None:
        """Keep exactly these shards in memory; `reader` reads the missing ones in order."""
        for number in shards:
            if number not in self._memory or self._memory[number].cancelled():
                file = self.shard_files[number]
                self._memory[number] = reader.submit(
                    with_retries, self._read_shard, number, name=lambda _, file=file: file
                )
        for number in set(self._memory) - set(shards):
            self._memory.pop(number).cancel()

    def release(self) -> None:
        """Drop all shards."""
        while self._memory:
            self._memory.popitem()[1].cancel()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the shards in memory: another process reads its own."""
        return vars(self) | {"_memory": {}}


class PackedStream(PackedSource, StreamSource):
    """A streamed split of a packed dataset: one read returns a shard's images and side indexes."""

    def __init__(self, root: Path, split: str, index_root: Path | None = None) -> None:
        super().__init__(root, split, index_root)
        self.shard_of = self.ranges.file_of
        self.shard_files = [root / split / shard.file for shard in self.index.shards]
        self._memory = {}

    def indexes(self, indices: Ints) -> list[Tensor] | None:
        try:
            return super().indexes(indices)
        except (OSError, DataError, ReadError):  # reported by `read`
            return None

    def _bytes(self, ranges: Ranges, index: int) -> Tensor:
        held = self._held(index)
        if held is None:
            return read_bytes(*ranges.of(index))
        start = int(ranges.offsets[index])
        return held[start : start + int(ranges.lengths[index])]

    def _read_shard(self, number: int) -> Tensor:
        return read_bytes(self.shard_files[number], 0, self.index.shards[number].bytes)
