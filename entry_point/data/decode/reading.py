"""The encoded images of a batch."""

from __future__ import annotations

from typing import Protocol, TypeGuard

import torch
from torch import Tensor

from custom_op import Packed
from entry_point.data.errors import DataError
from entry_point.data.plan.crops import Ints
from entry_point.data.sources.source import Source
from entry_point.data.spans import span


class PackedSource(Source, Protocol):
    """A source that holds its images in one buffer."""

    def packed(self, indices: Ints) -> Packed:
        """The buffer, and the offsets and lengths of these images."""
        ...


def is_packed(source: Source) -> TypeGuard[PackedSource]:
    return hasattr(source, "packed")


def read_files(source: Source, indices: Ints) -> tuple[list[Tensor], dict[int, str]]:
    """The encoded images, empty if unreadable, and the reasons by position in the batch."""
    files: list[Tensor] = []
    damage: dict[int, str] = {}
    with span("read"):
        for place, index in enumerate(indices.tolist()):
            try:
                files.append(source.read(index))
            except (OSError, DataError) as error:
                files.append(torch.empty(0, dtype=torch.uint8))
                damage[place] = getattr(error, "strerror", None) or str(error)
    return files, damage
