"""The encoded images of a batch, as a source holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from custom_op import Packed
from entry_point.data.errors import DataError
from entry_point.data.sources.file_source import FileSource
from entry_point.data.sources.source import Source
from entry_point.data.spans import span

Ints = NDArray[np.int64]
Files = list[Tensor] | Packed
"""Bytes of each image, uint8 (bytes,); or one buffer that holds them all."""


@dataclass(frozen=True)
class Encoded:
    """N images of a batch."""

    files: Files
    """Empty where an image cannot be read."""
    indexes: Files | None = None
    """The side index of each image, empty for one without; None if none has one."""
    sizes: tuple[Ints, Ints] | None = None
    """Upright heights and widths in pixels, int64 (N,); None if the source does not know them."""
    unreadable: dict[int, str] = field(default_factory=dict)
    """Why an image cannot be read, by its position."""
    makes_indexes: bool = False
    """Whether the source keeps side indexes that decoding makes."""

    def __len__(self) -> int:
        return len(self.files if isinstance(self.files, list) else self.files[1])

    def file(self, i: int) -> Tensor:
        return _pick(self.files, [i])[0]

    def only(self, positions: Sequence[int]) -> Encoded:
        """The images at these positions, in order."""
        if len(positions) == len(self):
            return self
        places = {position: i for i, position in enumerate(positions)}
        return Encoded(
            _pick(self.files, positions),
            None if self.indexes is None else _pick(self.indexes, positions),
            None if self.sizes is None else tuple(each[positions] for each in self.sizes),  # type: ignore[arg-type]
            {places[i]: reason for i, reason in self.unreadable.items() if i in places},
        )


class PackedSource(Source, Protocol):
    """A source that holds its images in one buffer."""

    def packed(self, indices: Ints) -> Packed:
        """The buffer, and the spans of these images."""
        ...


class IndexedSource(Source, Protocol):
    """A source that knows where decoding can start inside its images."""

    def indexes(self, indices: Ints) -> Files | None:
        """See Encoded.indexes."""
        ...


def read_images(source: Source, indices: Ints, *, with_indexes: bool = True) -> Encoded:
    """The images with these numbers, and what the source knows of them."""
    unreadable: dict[int, str] = {}
    files: Files = source.packed(indices) if _is_packed(source) else []
    if isinstance(files, list):
        files, unreadable = _read_files(source, indices)
    sizes = source.sizes
    return Encoded(
        files,
        source.indexes(indices) if with_indexes and _is_indexed(source) else None,
        None if sizes is None else _sizes_of(sizes.heights, sizes.widths, indices),
        unreadable,
        makes_indexes=with_indexes
        and isinstance(source, FileSource)
        and source.index_cache is not None,
    )


def _is_packed(source: Source) -> TypeGuard[PackedSource]:
    return hasattr(source, "packed")


def _is_indexed(source: Source) -> TypeGuard[IndexedSource]:
    return hasattr(source, "indexes")


def _read_files(source: Source, indices: Ints) -> tuple[list[Tensor], dict[int, str]]:
    """The encoded images, and why some cannot be read."""
    files: list[Tensor] = []
    unreadable: dict[int, str] = {}
    with span("read"):
        for i, index in enumerate(indices.tolist()):
            try:
                files.append(source.read(index))
            except (OSError, DataError) as error:
                files.append(torch.empty(0, dtype=torch.uint8))
                unreadable[i] = getattr(error, "strerror", None) or str(error)
    return files, unreadable


def _sizes_of(
    heights: NDArray[np.int32], widths: NDArray[np.int32], indices: Ints
) -> tuple[Ints, Ints]:
    return heights[indices].astype(np.int64), widths[indices].astype(np.int64)


def _pick(files: Files, positions: Sequence[int]) -> list[Tensor]:
    """The bytes of some of the images."""
    if isinstance(files, list):
        return [files[i] for i in positions]
    buffer, spans = files
    return [buffer[start : start + length] for start, length in spans[list(positions)].tolist()]
