"""Reads the encoded images of a batch and their sizes."""

from __future__ import annotations

from typing import Protocol, TypeGuard

import numpy as np
import torch
from torch import Tensor

from custom_op import Packed, jpeg_headers
from entry_point.data.errors import DataError
from entry_point.data.plan.crops import Ints
from entry_point.data.plan.orientation import upright_size
from entry_point.data.sources.source import Source
from entry_point.data.spans import span


class PackedSource(Source, Protocol):
    """A source that holds its images in one buffer."""

    def packed(self, indices: Ints) -> Packed:
        """The buffer, and the spans of these images."""
        ...


def is_packed(source: Source) -> TypeGuard[PackedSource]:
    return hasattr(source, "packed")


class IndexedSource(Source, Protocol):
    """A source that knows where decoding can start inside its images."""

    def indexes(self, indices: Ints) -> Packed | list[Tensor] | None:
        """The side index of each of these images, empty for one without; None if none has one."""
        ...


def is_indexed(source: Source) -> TypeGuard[IndexedSource]:
    return hasattr(source, "indexes")


def side_indexes(source: Source, indices: Ints) -> Packed | list[Tensor] | None:
    """What the operator takes as `indexes`."""
    return source.indexes(indices) if is_indexed(source) else None


def nth(images: list[Tensor] | Packed, i: int) -> Tensor:
    """The bytes of one image, or index, of a batch."""
    if isinstance(images, list):
        return images[i]
    buffer, spans = images
    start, length = spans[i].tolist()
    return buffer[start : start + length]


def read_files(source: Source, indices: Ints) -> tuple[list[Tensor], dict[int, str]]:
    """The encoded images, empty if unreadable, and the reasons by position in the batch."""
    files: list[Tensor] = []
    damage: dict[int, str] = {}
    with span("read"):
        for i, index in enumerate(indices.tolist()):
            try:
                files.append(source.read(index))
            except (OSError, DataError) as error:
                files.append(torch.empty(0, dtype=torch.uint8))
                damage[i] = getattr(error, "strerror", None) or str(error)
    return files, damage


def upright_sizes(source: Source, files: list[Tensor] | Packed, indices: Ints) -> tuple[Ints, Ints]:
    """Upright heights and widths in pixels, int64 (N,), from the index or the JPEG headers."""
    if source.sizes is not None:
        heights, widths = source.sizes.heights[indices], source.sizes.widths[indices]
        return heights.astype(np.int64), widths.astype(np.int64)
    # A file without a readable header counts as 1 x 1; the operator refuses to decode it, too.
    return upright_size(*np.maximum(jpeg_headers(files).numpy(), 1).T)
