"""A packed split: its index, and its samples in memory-mapped tar shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from entry_point.data.errors import DataError
from entry_point.data.plan.crops import upright_size
from entry_point.data.plan.samples import Ints
from entry_point.data.sources.dataset_description import (
    Dataset,
    Description,
    read_dataset,
    require_shard,
)
from entry_point.data.sources.file_bytes import map_file
from entry_point.data.sources.rows import Labels, Ranges
from entry_point.data.sources.shard_table import Table
from entry_point.data.sources.source import RangeSource, UprightSizes
from entry_point.job.text import printable

SIDE_MEMBER = "__side_index__"
"""The last member of a shard: the concatenated side indexes of its images. Readers of WebDataset
take names of this form for metadata."""

COLUMNS: dict[str, Any] = {
    "label": np.int32,  # position in the part's classes
    "shard": np.int32,  # position in the part's shards
    "offset": np.int64,  # of the image's first byte in the shard
    "length": np.int64,  # of the image in bytes
    "height": np.int32,  # of the stored pixels, before orientation
    "width": np.int32,
    "orientation": np.int8,  # EXIF, 1 to 8
    "crc32": np.uint32,  # of the image's bytes
    "side_offset": np.int64,  # of the first byte of its side index in the shard
    "side_length": np.int32,  # of its side index in bytes; 0 for none
}
LABEL_END = "label_end"
"""For kind `labels`: the end of each sample's labels among those of all samples."""

_LONGEST_SIDE = 1 << 27
_SIZES = ("height", "width", "orientation")
_IMAGE, _SIDE = ("offset", "length"), ("side_offset", "side_length")
_SIDE_OF_VERSION_1, _HEADER_OF_VERSION_1 = "side_index", 4096
"""Version 1 has the side indexes in the index file, after a header of this many bytes."""


def columns_of(kind: str, version: int = 2) -> dict[str, Any]:
    """Returns the columns of an index and their types. For kind `numbers`, `label` has a row per
    sample."""
    columns = COLUMNS | ({_SIDE_OF_VERSION_1: np.uint8} if version == 1 else {})
    if kind == "labels":
        return columns | {LABEL_END: np.int64}
    return columns | ({"label": np.float32} if kind == "numbers" else {})


class PartIndex:
    """The index of a split in one part."""

    def __init__(self, root: Path, part: Description, split: str) -> None:
        """Read the index. Raises DataError if it is damaged."""
        self.part, self.split = part, part.splits[split]
        file = root / split / part.part.index
        self.table = table = Table(file, columns_of(part.kind, part.version))
        samples = self.split.samples
        if self._checksum() != self.split.table_crc32:
            raise table.damaged("its checksum differs")
        if len(table) != samples:
            raise DataError(
                f"{file} has {len(table)} rows, but {part.part.description} lists {samples} "
                "samples: pack again"
            )
        try:
            if {table.shapes[name] for name in COLUMNS if name != "label"} != {(samples,)}:
                raise ValueError("columns differ in length")
            self.labels = self._labels(samples)
        except (ValueError, IndexError) as error:
            raise table.damaged(error) from error
        except MemoryError as error:
            raise DataError(f"{file}: no memory for {samples} labels ({error})") from error

    def __getitem__(self, column: str) -> NDArray[Any]:
        return self.table[column]

    def __len__(self) -> int:
        return len(self.table)

    def name(self, row: int) -> str:
        """Returns the name of the image's member in its tar file."""
        return self.table.name(row)

    def _checksum(self) -> int:
        """Returns the CRC-32 of the index file; that of version 1 excludes the side indexes."""
        if self.part.version != 1:
            return self.table.crc32()
        start = _HEADER_OF_VERSION_1
        return self.table.crc32((start, start + self.table.shapes[_SIDE_OF_VERSION_1][0]))

    def _labels(self, samples: int) -> NDArray[Any]:
        """Returns `Source.labels`, with positions in the part's classes. Raises ValueError."""
        values, outputs = self["label"], len(self.part.classes)
        if self.part.kind == "class":
            if values.shape != (samples,):
                raise ValueError("columns differ in length")
            return values
        if self.part.kind == "numbers":
            if values.shape != (samples, outputs):
                raise ValueError(f"a sample does not have {outputs} numbers")
            if not np.isfinite(values).all():
                raise ValueError("a number is not finite")
            return values
        counts = np.diff(self[LABEL_END], prepend=0)
        if len(counts) != samples or (counts < 0).any() or counts.sum() != len(values):
            raise ValueError("columns differ in length")
        if len(values) and not 0 <= values.min() <= values.max() < outputs:
            raise ValueError(f"a label is not from 0 to {outputs - 1}")
        labels = np.zeros((samples, outputs), np.float32)
        labels[np.repeat(np.arange(samples), counts), values] = 1
        return labels

    def wrong_rows(self) -> Iterator[tuple[int, str]]:
        """Yields rows that contradict the description or describe no image, with the reasons."""
        ranges = {"height": (1, _LONGEST_SIDE), "width": (1, _LONGEST_SIDE), "orientation": (1, 8)}
        sizes = np.array([shard.bytes for shard in self.split.shards], dtype=np.int64)
        if self.part.kind == "class":
            ranges = {"label": (0, len(self.part.classes) - 1)} | ranges
        places = {_IMAGE: "lies outside its shard"}
        if self.part.version != 1:
            places[_SIDE] = "its side index lies outside its shard"
        if len(sizes):
            inside = (0, int(sizes.max()))
            ranges |= {"shard": (0, len(sizes) - 1), **dict.fromkeys(chain(*places), inside)}
        for column, (least, most) in ranges.items():
            values = self[column]
            for row in np.flatnonzero((values < least) | (values > most)).tolist():
                yield row, f"{column}={values[row]} in the index: must be {least} to {most}"
        for (offset, length), reason in places.items() if len(sizes) else ():
            # The sum of offset and length may overflow.
            room = sizes[self["shard"].clip(0, len(sizes) - 1)] - self[offset]
            for row in np.flatnonzero(self[length] > room).tolist():
                yield row, reason


class ShardIndex:
    """The index of all samples of a split, in the order of the shards' names.

    The columns are in memory: 45 bytes per sample. As a sequence, it holds the samples' names.
    """

    def __init__(self, root: Path, split: str) -> None:
        """Read the indexes of all parts. Raises DataError."""
        dataset = read_dataset(root)
        if split not in dataset.splits:
            raise DataError(f"{root} has no split {split}, only {', '.join(dataset.splits)}")
        self.version, self.shards = dataset.version, dataset.shards(split)
        self._parts = [
            PartIndex(root, part, split)
            for part in dataset.parts
            if split in part.splits and part.splits[split].shards
        ]
        if not any(map(len, self._parts)):
            raise DataError(f"{root / split} holds no samples: pack the dataset again")
        for part in self._parts:
            for row, reason in part.wrong_rows():
                where = f"{root / split}: {part.name(row)}"
                raise DataError(f"{where}: {reason}: pack the dataset again")
        self._join(dataset, str(root / split))

    def __len__(self) -> int:
        return len(self.labels.values)

    def __iter__(self) -> Iterator[str]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> str:
        """Returns the name of the image's member in its tar file."""
        row = index if self._order is None else int(self._order[index])
        for part in self._parts:
            if row < len(part):
                return part.name(row)
            row -= len(part)
        raise IndexError(index)

    def _join(self, dataset: Dataset, folder: str) -> None:
        parts = self._parts
        shards = [part["shard"] for part in parts]
        self._order: Ints | None = None
        if len(parts) > 1:
            numbers = {shard.file: number for number, shard in enumerate(self.shards)}
            for i, part in enumerate(parts):
                shards[i] = _renumbered(shards[i], [s.file for s in part.split.shards], numbers)
            self._order = np.argsort(np.concatenate(shards), kind="stable")
        files = [shard.file for shard in self.shards]
        offsets, lengths = self._columns(_IMAGE)
        self.where = Ranges(folder, files, self._joined(shards), offsets, lengths)
        self.side = self._side_indexes()
        labels = [part.labels for part in parts]
        classes = {name: number for number, name in enumerate(dataset.classes)}
        for i, part in enumerate(parts):
            if part.part.classes != dataset.classes:  # possible for class folders only
                labels[i] = _renumbered(labels[i], part.part.classes, classes)
        self.labels = Labels(dataset.kind, dataset.classes, self._joined(labels))
        self.sizes = UprightSizes(*upright_size(*self._columns(_SIZES)))

    def _columns(self, names: Iterable[str]) -> Iterator[NDArray[Any]]:
        """Yields these columns of all samples."""
        return (self._joined([part[name] for part in self._parts]) for name in names)

    def _joined(self, columns: list[NDArray[Any]]) -> NDArray[Any]:
        """Joins a column of all parts, in the order of the samples."""
        return columns[0] if self._order is None else np.concatenate(columns)[self._order]

    def _side_indexes(self) -> Ranges | None:
        """Returns the ranges of the side indexes; None if no image has one, or for version 1."""
        if self.version == 1:
            return None
        offsets, lengths = self._columns(_SIDE)
        return replace(self.where, offsets=offsets, lengths=lengths) if lengths.any() else None

    def listing(self) -> Iterable[bytes]:
        """Yields the checksums of the index files, which cover all of their content."""
        checksums = [part.split.table_crc32 for part in self._parts]
        yield repr(([shard.file for shard in self.shards], checksums)).encode()


def _renumbered(
    values: NDArray[np.int32], names: list[str], numbers: dict[str, int]
) -> NDArray[np.int32]:
    """Replaces positions in `names` by the `numbers` of these names."""
    return np.array([numbers[name] for name in names], np.int32)[values]


class PackedSource(RangeSource):
    """The samples of a packed split: images and side indexes are ranges of its shards."""

    def __init__(self, root: Path, split: str, index_root: Path | None = None) -> None:
        """Shards are below `root`; their index is below `index_root`, by default also `root`."""
        self._arguments = root, split, index_root
        self.index = index = ShardIndex(index_root or root, split)
        for shard in index.shards:
            require_shard(root / split, shard)
        folder = str(root / split)
        self.ranges = replace(index.where, folder=folder)
        self.side = None if index.side is None else replace(index.side, folder=folder)
        super().__init__(self.ranges, index, index.labels)
        self.labels, self.sizes = torch.from_numpy(index.labels.values), index.sizes

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments: the receiving process opens the files again."""
        return type(self), self._arguments

    def listing(self) -> Iterable[bytes]:
        return self.index.listing()

    def key(self, index: int) -> str:
        return printable(f"{self.ranges.of(index).file}: {self.name(index)}")

    def read(self, index: int) -> Tensor:
        return self._bytes(self.ranges, index)

    def indexes(self, indices: Ints) -> list[Tensor] | None:
        if self.side is None:
            return None
        return [self._bytes(self.side, index) for index in indices.tolist()]

    def _bytes(self, ranges: Ranges, index: int) -> Tensor:
        """Returns a range of a shard, uint8. Raises errors as `Source.read`."""
        raise NotImplementedError


class ShardSource(PackedSource):
    """A packed source whose images are views of the mapped shards, without copies."""

    def __init__(self, root: Path, split: str) -> None:
        super().__init__(root, split)
        self._maps = [map_file(root / split / shard.file) for shard in self.index.shards]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._arguments[:2]

    def _bytes(self, ranges: Ranges, index: int) -> Tensor:
        start = int(ranges.offsets[index])
        return self._maps[ranges.file_of[index]][start : start + int(ranges.lengths[index])]
