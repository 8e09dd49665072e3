"""A split's index in memory, ready to locate its samples in the shards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from entry_point.contract.printable import printable
from entry_point.data.errors import DataError
from entry_point.data.plan.orientation import upright_size
from entry_point.data.sources.dataset_description import Description, read_description
from entry_point.data.sources.packed.index import INDEX_LENGTH, Index, read_index
from entry_point.data.sources.side_indexes import SIDE_INDEXES, open_side_indexes
from entry_point.data.sources.source import UprightSizes

_MOST_INDEX_BYTES = 2**31 - 1


class ShardIndex:
    """The offsets, sizes and labels of a split, checked for consistency."""

    def __init__(self, root: Path, split: str) -> None:
        description = read_description(root)
        if description.format != "shards":
            raise DataError(f"{root} holds plain files: read it with data=folder")
        self._index = read_index(root, description, split)
        self.folder = root / split
        self.classes, self.kind = description.classes, description.kind
        self.shards = description.splits[split].shards
        self.shard, self.offsets, self.lengths = (
            self._index[name] for name in ("shard", "offset", "length")
        )
        self.labels = torch.from_numpy(self._index["label"])
        self.sizes = UprightSizes(
            *upright_size(*(self._index[name] for name in ("height", "width", "orientation")))
        )
        self._check(description, split)
        lengths, remedy = self._index[INDEX_LENGTH], "copy it again or pack the dataset again"
        self.side_indexes = open_side_indexes(self.folder / SIDE_INDEXES, lengths, remedy)

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, index: int) -> str:
        """Name of the sample's tar members, without their suffixes."""
        return self._index.key(index)

    def key(self, index: int) -> str:
        shard = self.shards[self.shard[index]]
        return printable(f"{self.folder / shard.file}: {self.name(index)}.jpg")

    def _check(self, description: Description, split: str) -> None:
        if not len(self):
            raise DataError(f"{self.folder} holds no samples: pack the dataset again")
        for row, reason in find_wrong_rows(self._index, description, split):
            raise DataError(f"{self.folder}: {self.name(row)}: {reason}: pack the dataset again")


def find_wrong_rows(
    index: Index, description: Description, split: str
) -> Iterator[tuple[int, str]]:
    """Rows that contradict the description or describe no JPEG, and the reasons."""
    ranges = {"height": (1, 65535), "width": (1, 65535), "orientation": (1, 8)}
    ranges[INDEX_LENGTH] = (0, _MOST_INDEX_BYTES)
    sizes = np.array([shard.bytes for shard in description.splits[split].shards], dtype=np.int64)
    if description.kind == "class":
        ranges = {"label": (0, len(description.classes) - 1)} | ranges
    if description.format == "shards" and len(sizes):
        longest = int(sizes.max())
        ranges |= {"shard": (0, len(sizes) - 1), "offset": (0, longest), "length": (0, longest)}
    for column, (least, most) in ranges.items():
        values = index[column]
        for row in np.flatnonzero((values < least) | (values > most)).tolist():
            yield row, f"{column}={values[row]} in the index: must be {least} to {most}"
    if "shard" in ranges:
        # The sum of offset and length may overflow.
        room = sizes[index["shard"].clip(0, len(sizes) - 1)] - index["offset"]
        for row in np.flatnonzero(index["length"] > room).tolist():
            yield row, "lies outside its shard"
