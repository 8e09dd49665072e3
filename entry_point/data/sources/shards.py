"""Samples in memory-mapped tar shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_op import Packed
from entry_point.data.errors import DataError
from entry_point.data.plan.crops import Ints
from entry_point.data.plan.orientation import upright_size
from entry_point.data.sources.index import Shard, read_description, read_index
from entry_point.data.sources.mapping import map_files
from entry_point.data.sources.source import UprightSizes


class ShardIndex:
    """What a split's index says, checked against itself."""

    def __init__(self, root: Path, split: str) -> None:
        description = read_description(root)
        if description.format != "shards":
            raise DataError(f"{root} holds plain files: read it with data=folder")
        self._index = read_index(root, description, split)
        self.folder = root / split
        self.classes = description.classes
        self.shards = description.splits[split].shards
        self.shard, self.offsets, self.lengths = (
            self._index[name] for name in ("shard", "offset", "length")
        )
        self.labels = torch.from_numpy(self._index["label"])
        self.sizes = UprightSizes(
            *upright_size(*(self._index[name] for name in ("height", "width", "orientation")))
        )
        self._check(root)

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, index: int) -> str:
        """Name of the sample's members in its shard, without their suffixes."""
        return self._index.key(index)

    def key(self, index: int) -> str:
        shard = self.shards[self.shard[index]]
        return f"{self.folder / shard.file}: {self.name(index)}.jpg"

    def _check(self, root: Path) -> None:
        """The index against itself and the description."""
        if not len(self):
            raise DataError(f"{self.folder} holds no sample")
        if not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.classes):
            bad = int(((self.labels < 0) | (self.labels >= len(self.classes))).int().argmax())
            raise DataError(
                f"{self.key(bad)} has label {int(self.labels[bad])}, but {root} has only "
                f"{len(self.classes)} classes: pack again"
            )
        if not 0 <= self.shard.min() <= self.shard.max() < len(self.shards):
            raise DataError(f"the index of {self.folder} names a shard that is not listed")
        sizes = np.array([shard.bytes for shard in self.shards])[self.shard]
        if (self.offsets < 0).any() or (self.offsets + self.lengths > sizes).any():
            raise DataError(f"the index of {self.folder} points behind a shard's end")


class ShardSource:
    """The samples of a split, each a view of the mapped file: nothing is copied."""

    def __init__(self, root: Path, split: str) -> None:
        self._index = ShardIndex(root, split)
        self.classes = self._index.classes
        self.labels = self._index.labels
        self.sizes = self._index.sizes
        for shard in self._index.shards:
            require_shard(self._index.folder, shard)
        self._map()

    def __len__(self) -> int:
        return len(self._index)

    def read(self, index: int) -> Tensor:
        start = int(self._starts[self._index.shard[index]] + self._index.offsets[index])
        return self._bytes[start : start + int(self._index.lengths[index])]

    def packed(self, indices: Ints) -> Packed:
        """All shards' bytes, and where in them these images are: nothing is done one by one."""
        offsets = self._starts[self._index.shard[indices]] + self._index.offsets[indices]
        lengths = self._index.lengths[indices]
        return self._bytes, torch.from_numpy(offsets), torch.from_numpy(lengths)

    def following(self, indices: Ints) -> Ints:
        return (indices + 1) % len(self)

    def key(self, index: int) -> str:
        return self._index.key(index)

    def _map(self) -> None:
        files = [self._index.folder / shard.file for shard in self._index.shards]
        self._bytes, starts = map_files(files)
        self._starts = np.array(starts, dtype=np.int64)

    def __getstate__(self) -> dict[str, Any]:
        """Another process maps the files itself."""
        return {name: value for name, value in vars(self).items() if name != "_bytes"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._map()


def require_shard(folder: Path, shard: Shard) -> None:
    file = folder / shard.file
    if not file.is_file():
        raise DataError(f"{file} is missing: copy it again or pack the data set again")
    if file.stat().st_size != shard.bytes:
        raise DataError(
            f"{file} has {file.stat().st_size} bytes instead of {shard.bytes}: "
            "copy it again or pack the data set again"
        )
