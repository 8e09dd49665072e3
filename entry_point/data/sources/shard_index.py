"""A split's index in memory, ready to locate its samples in the shards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from entry_point.data.errors import DataError
from entry_point.data.plan.orientation import upright_size
from entry_point.data.sources.dataset_description import DESCRIPTION, read_description
from entry_point.data.sources.index import read_index
from entry_point.data.sources.source import UprightSizes


class ShardIndex:
    """The offsets, sizes and labels of a split, checked for consistency."""

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
        """Name of the sample's tar members, without their suffixes."""
        return self._index.key(index)

    def key(self, index: int) -> str:
        shard = self.shards[self.shard[index]]
        return f"{self.folder / shard.file}: {self.name(index)}.jpg"

    def _check(self, root: Path) -> None:
        if not len(self):
            raise DataError(f"{self.folder} holds no samples: pack the dataset again")
        if not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.classes):
            bad = int(((self.labels < 0) | (self.labels >= len(self.classes))).int().argmax())
            raise DataError(
                f"{self.key(bad)} has label {int(self.labels[bad])}, but {root} has only "
                f"{len(self.classes)} classes: pack the dataset again"
            )
        if not 0 <= self.shard.min() <= self.shard.max() < len(self.shards):
            raise DataError(
                f"the index of {self.folder} refers to a shard that is not in {DESCRIPTION}: "
                "pack the dataset again"
            )
        sizes = np.array([shard.bytes for shard in self.shards])[self.shard]
        if (self.offsets < 0).any() or (self.offsets + self.lengths > sizes).any():
            raise DataError(
                f"the index of {self.folder} has samples outside their shard: "
                "pack the dataset again"
            )
