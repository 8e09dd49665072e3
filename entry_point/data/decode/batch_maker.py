"""What happens to samples whose image cannot be decoded (`data.on_error`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from entry_point.config.data_config import DataConfig
from entry_point.data.batch import Batch, Damage
from entry_point.data.decode.allocation import Allocate
from entry_point.data.errors import DataError
from entry_point.data.plan.crops import CropPlanner, Ints
from entry_point.data.sources.source import Source
from entry_point.data.spans import recording, span

Missing = dict[int, str]
"""Position in the batch -> why that image could not be decoded."""
MakeImages = Callable[[Source, CropPlanner, int, Ints, Allocate], tuple[Tensor, Missing]]
"""(source, planner, epoch, indices, allocate) -> the samples' pixels, and those that are missing.

uint8 (N, 3, image_size, image_size), channels_last; any content where a sample is missing.
"""
MakeBatch = Callable[[int, Ints], Batch]
Request = tuple[int, Ints]
"""Epoch and sample indices of one batch."""

_LONGEST_RUN = 100


@dataclass(frozen=True)
class BatchMaker:
    """Makes a batch of any engine's images and applies `data.on_error` to it.

    A damaged training sample is replaced by the sample that follows it in the source, a damaged
    validation sample is left out. A file that cannot be read, has no JPEG header or ends before the
    crop does is damaged for every engine. Wrong bits inside are found only where they throw a
    decoder off, as JPEG has no checksum: `pillow` decodes whole files but forgives much, the others
    see the crop alone, and `dali` refuses some sound files. One engine finds the same with any
    number of workers and after a resume.
    """

    source: Source
    planner: CropPlanner
    make_images: MakeImages
    profile: bool = False
    """Record what the batches' making takes."""

    def __call__(self, epoch: int, indices: Ints, allocate: Allocate) -> Batch:
        if not self.profile:
            return self._make(epoch, indices, allocate)
        with recording() as spans:
            batch = self._make(epoch, indices, allocate)
        return replace(batch, spans=tuple(spans))

    def close(self) -> None:
        """End the threads of an engine that has some of its own."""
        if hasattr(self.make_images, "close"):
            self.make_images.close()

    def _make(self, epoch: int, indices: Ints, allocate: Allocate) -> Batch:
        images, reasons = self.make_images(self.source, self.planner, epoch, indices, allocate)
        if not reasons:
            return self._batch(images, indices, ())
        damage = self._report(indices, reasons)
        if self.planner.data.on_error == "raise":
            raise DataError(
                f"{damage[0].key}: {damage[0].reason}; data.on_error=skip goes on without such "
                f"images, {check_command(self.planner.data)}"
            )
        if not self.planner.train:
            whole = np.array([i for i in range(len(indices)) if i not in reasons], dtype=np.int64)
            return self._batch(images[whole], indices[whole], damage)
        return self._replace(epoch, images, indices.copy(), reasons, damage, allocate)

    def _replace(
        self,
        epoch: int,
        images: Tensor,
        indices: Ints,
        reasons: dict[int, str],
        damage: tuple[Damage, ...],
        allocate: Allocate,
    ) -> Batch:
        for _ in range(_LONGEST_RUN):
            places = np.array(sorted(reasons))
            indices[places] = self.source.following(indices[places])
            images[places], failed = self.make_images(
                self.source, self.planner, epoch, indices[places], allocate
            )
            reasons = {int(places[i]): reason for i, reason in failed.items()}
            if not reasons:
                return self._batch(images, indices, damage)
            damage += self._report(indices, reasons)
        raise DataError(
            f"{damage[-1].key} and the {_LONGEST_RUN} images before it are damaged; "
            f"{check_command(self.planner.data)}"
        )

    def _report(self, indices: Ints, reasons: dict[int, str]) -> tuple[Damage, ...]:
        return tuple(Damage(self.source.key(int(indices[i])), reasons[i]) for i in sorted(reasons))

    def _batch(self, images: Tensor, indices: Ints, damage: tuple[Damage, ...]) -> Batch:
        with span("collate"):
            return Batch(
                images, self.source.labels[indices].long(), torch.from_numpy(indices), damage
            )


def check_command(data: DataConfig) -> str:
    """How to find all damaged images at once."""
    return f'`make check-dataset ARGS="root={data.root or "FOLDER"}"` lists them all'
