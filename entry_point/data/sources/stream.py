"""Shards read whole and in order, for file systems where seeking costs (FastFile, networks).

StreamPlan says which shards are read when.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from entry_point.data.sources.file_bytes import read_part, read_through
from entry_point.data.sources.shards import ShardIndex, require_shard

Ints = NDArray[np.int64]


class StreamSource:
    """The samples of the shards that are here; single reads where no shard is in memory."""

    def __init__(self, root: Path, index_root: Path, split: str, all_here: bool) -> None:
        self.index = ShardIndex(index_root, split)
        self.classes, self.labels = self.index.classes, self.index.labels
        self.sizes = self.index.sizes
        self.shard_of = self.index.shard  # shard number of each sample
        self.shard_files = [root / split / shard.file for shard in self.index.shards]
        self.shards_here = self._shards_here(all_here)
        self._memory: dict[int, Future[Tensor]] = {}
        self._cached: dict[int, Future[None]] = {}

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def rows_here(self) -> Ints:
        """The samples of the shards that are here."""
        return np.flatnonzero(np.isin(self.shard_of, self.shards_here))

    def key(self, index: int) -> str:
        return self.index.key(index)

    def read(self, index: int) -> Tensor:
        number = int(self.shard_of[index])
        start, length = int(self.index.offsets[index]), int(self.index.lengths[index])
        whole = self._memory.get(number)
        try:
            if whole is not None:
                return whole.result()[start : start + length]
        except CancelledError:  # the epoch was left while its shards were being read
            pass
        return read_part(str(self.shard_files[number]), start, length)

    def following(self, indices: Ints) -> Ints:
        """The next of the shards that are here."""
        place = np.searchsorted(self.rows_here, indices, side="right")
        return self.rows_here[place % len(self.rows_here)]

    def hold(self, reader: ThreadPoolExecutor, shards: Sequence[int]) -> None:
        """Have these shards in memory, read one after the other by `reader`, and no others."""
        for number in shards:
            if number not in self._memory or self._memory[number].cancelled():
                file, size = str(self.shard_files[number]), self.index.shards[number].bytes
                self._memory[number] = reader.submit(read_part, file, 0, size)
        for number in set(self._memory) - set(shards):
            self._memory.pop(number).cancel()

    def cache(self, reader: ThreadPoolExecutor, shards: Sequence[int]) -> None:
        """Have these shards in the page cache, where other processes find them."""
        for number in shards:
            if number not in self._cached or self._cached[number].cancelled():
                file = str(self.shard_files[number])
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
        here = [number for number, file in enumerate(self.shard_files) if all_here or file.exists()]
        for number in here:
            require_shard(self.shard_files[number].parent, self.index.shards[number])
        return here
