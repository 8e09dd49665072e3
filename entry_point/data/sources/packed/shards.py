"""Samples in memory-mapped tar shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_op import Packed
from entry_point.data.plan.samples import Ints
from entry_point.data.sources.dataset_description import require_shard
from entry_point.data.sources.file_bytes import map_files
from entry_point.data.sources.packed.index import ShardIndex
from entry_point.data.sources.source import UprightSizes


class ShardSource:
    """The samples of a split; each is a view of the mapped shard, not a copy."""

    def __init__(self, root: Path, split: str) -> None:
        self._index = ShardIndex(root, split)
        self.classes, self.kind = self._index.classes, self._index.kind
        for shard in self._index.shards:
            require_shard(self._index.folder, shard)
        self._map()

    @property
    def labels(self) -> Tensor:
        return self._index.labels

    @property
    def sizes(self) -> UprightSizes:
        return self._index.sizes

    def __len__(self) -> int:
        return len(self._index)

    def read(self, index: int) -> Tensor:
        start = int(self._starts[self._index.shard[index]] + self._index.offsets[index])
        return self._bytes[start : start + int(self._index.lengths[index])]

    def packed(self, indices: Ints) -> Packed:
        """The bytes of all shards, and the spans of these images in them."""
        starts = self._starts[self._index.shard[indices]] + self._index.offsets[indices]
        spans = np.stack([starts, self._index.lengths[indices]], axis=1)
        return self._bytes, torch.from_numpy(spans)

    def indexes(self, indices: Ints) -> Packed | None:
        """See IndexedSource."""
        side_indexes = self._index.side_indexes
        return None if side_indexes is None else side_indexes.packed(indices)

    def following(self, indices: Ints) -> Ints:
        return (indices + 1) % len(self)

    def key(self, index: int) -> str:
        return self._index.key(index)

    def name(self, index: int) -> str:
        """Name of the image's member in its tar file."""
        return f"{self._index.name(index)}.jpg"

    def _map(self) -> None:
        files = [self._index.folder / shard.file for shard in self._index.shards]
        self._bytes, starts = map_files(files)
        self._starts = np.array(starts, dtype=np.int64)

    def __getstate__(self) -> dict[str, Any]:
        """Without the mapped bytes: the receiving process maps the files again."""
        return {name: value for name, value in vars(self).items() if name != "_bytes"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._map()
