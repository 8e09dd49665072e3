"""Side indexes of many images, one after the other in one file beside the index's table.

They are a column of that table, with about 1 % of the images' bytes: too large to hold in memory,
as Parquet would. A file of its own is memory-mapped, so the operator gets it with offsets and
lengths, without a copy. It lies with the table and not with each shard: with ShardedByS3Key, the
two files of a shard could go to different hosts.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from custom_op import Packed
from entry_point.data.sources.file_bytes import read_bytes
from entry_point.data.sources.packed.memory_map import map_files

SIDE_INDEXES = "index.jix"

log = logging.getLogger(__name__)

Ints = NDArray[np.int64]


class SideIndexes:
    """The side indexes of a source's images: 12 bytes of memory per image."""

    def __init__(self, file: Path, offsets: Ints, lengths: NDArray[np.int32]) -> None:
        """Offset and length of each image's index in `file`; length 0 for an image without."""
        self._file, self._offsets, self._lengths = file, offsets, lengths

    def packed(self, indices: Ints) -> Packed:
        """The mapped file, and the spans of these images' indexes in it."""
        spans = np.stack([self._offsets[indices], self._lengths[indices]], axis=1)
        return self._bytes, torch.from_numpy(spans)

    def one(self, index: int) -> Tensor:
        """An image's index, uint8 (bytes,); empty for none."""
        length, first = int(self._lengths[index]), int(self._offsets[index])
        return self._bytes[first : first + length] if length else torch.empty(0, dtype=torch.uint8)

    def read(self, rows: Ints) -> tuple[int, Tensor]:
        """The part of the file that holds the indexes of `rows`, and where it starts."""
        start = int(self._offsets[rows].min())
        end = int((self._offsets[rows] + self._lengths[rows]).max())
        return start, read_bytes(self._file, start, end - start)

    def cut(self, index: int, start: int, part: Tensor) -> Tensor:
        """An image's index from what `read` returned."""
        first = int(self._offsets[index]) - start
        return part[first : first + int(self._lengths[index])]

    @cached_property
    def _bytes(self) -> Tensor:
        return map_files([self._file])[0]

    def __getstate__(self) -> dict[str, Any]:
        """Without the mapped bytes: the receiving process maps the file again."""
        return {name: value for name, value in vars(self).items() if name != "_bytes"}


def open_side_indexes(file: Path, lengths: NDArray[np.int32], remedy: str) -> SideIndexes | None:
    """The side indexes that follow one another in `file`, or None if there are none to use.

    A file that is missing or has another size costs speed, not pixels: a warning counts the images.
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    if not len(ends) or not ends[-1]:
        return None
    if reason := wrong_size(file, int(ends[-1])):
        log.warning(
            "%s %s: %d images decode without a side index, slower and to the same pixels; %s",
            file,
            reason,
            np.count_nonzero(lengths),
            remedy,
        )
        return None
    return SideIndexes(file, ends - lengths, lengths)


def wrong_size(file: Path, expected: int) -> str:
    """How the file differs from one of `expected` bytes; empty if it does not."""
    try:
        size = file.stat().st_size
    except OSError as error:
        return "is missing" if isinstance(error, FileNotFoundError) else f"{error.strerror}"
    return "" if size == expected else f"has {size} bytes instead of {expected}"


class SideIndexWriter:
    """Writes side indexes one after the other, and keeps their checksum."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._error: OSError | None = None
        self.crc32 = 0

    def write(self, indexes: Sequence[bytes]) -> list[int]:
        """Append the indexes, empty for none; returns their lengths.

        An error is kept for `finish`: what writes the table in between would hide its type.
        """
        for index in indexes:
            self.crc32 = zlib.crc32(index, self.crc32)
            try:
                self._file.write(index)
            except OSError as error:
                self._error = error
        return [len(index) for index in indexes]

    def finish(self) -> None:
        """Raises OSError if anything could not be written."""
        if self._error is not None:
            raise self._error
