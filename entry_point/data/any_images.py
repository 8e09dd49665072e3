"""Samples of any format: JPEGs from the batch operator, all else from Pillow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from entry_point.data.batch import empty_images
from entry_point.data.batch_images import batch_images
from entry_point.data.crops import CropPlanner
from entry_point.data.pillow_images import pillow_images
from entry_point.data.source import Source

_JPEG = b"\xff\xd8\xff"


def any_images(
    source: Source, planner: CropPlanner, epoch: int, indices: NDArray[np.int64]
) -> tuple[Tensor, dict[int, str]]:
    """Pixels, uint8 (N, 3, image_size, image_size), and why those at some places are missing."""
    files = _Read(source, {int(index): source.read(int(index)) for index in indices})
    jpegs = [i for i, index in enumerate(indices) if _is_jpeg(files.read(int(index)))]
    images = empty_images(len(indices), planner.data.image_size)
    refused: dict[int, str] = {}
    if jpegs:
        images[jpegs], refused = batch_images(files, planner, epoch, indices[jpegs])
    done = {place for i, place in enumerate(jpegs) if i not in refused}
    others = [place for place in range(len(indices)) if place not in done]
    damage: dict[int, str] = {}
    if others:
        images[others], failed = pillow_images(files, planner, epoch, indices[others])
        damage = {others[i]: reason for i, reason in failed.items()}
    return images, damage


@dataclass(frozen=True)
class _Read:
    """Some images of a source, already read."""

    source: Source
    files: dict[int, Tensor]
    sizes = None

    @property
    def classes(self) -> list[str]:
        return self.source.classes

    @property
    def labels(self) -> Tensor:
        return self.source.labels

    def __len__(self) -> int:
        return len(self.source)

    def read(self, index: int) -> Tensor:
        return self.files[index]

    def key(self, index: int) -> str:
        return self.source.key(index)


def _is_jpeg(file: Tensor) -> bool:
    return file[: len(_JPEG)].numpy().tobytes() == _JPEG
