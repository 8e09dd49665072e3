"""What happens to samples whose image cannot be decoded (`data.on_error`)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from entry_point.config.data_config import DataConfig
from entry_point.data.batch import Batch, Damage
from entry_point.data.errors import DataError
from entry_point.data.plan.crops import CropPlanner
from entry_point.data.sources.source import Source
from entry_point.data.spans import recording, span

log = logging.getLogger(__name__)

MakeImages = Callable[[Source, CropPlanner, int, NDArray[np.int64]], tuple[Tensor, dict[int, str]]]
"""Pixels of the samples, and the reason for each place whose image could not be decoded."""

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

    def __call__(self, epoch: int, indices: NDArray[np.int64]) -> Batch:
        if not self.profile:
            return self._make(epoch, indices)
        with recording() as spans:
            batch = self._make(epoch, indices)
        return replace(batch, spans=tuple(spans))

    def close(self) -> None:
        """End the threads of an engine that has some of its own."""
        if hasattr(self.make_images, "close"):
            self.make_images.close()

    def _make(self, epoch: int, indices: NDArray[np.int64]) -> Batch:
        images, reasons = self.make_images(self.source, self.planner, epoch, indices)
        if not reasons:
            return self._batch(images, indices, ())
        damage = self._report(indices, reasons)
        if self.planner.data.on_error == "raise":
            raise DataError(
                f"{damage[0].key}: {damage[0].reason}; data.on_error=skip goes on without such "
                f"images, {_listing(self.planner.data)}"
            )
        if not self.planner.train:
            whole = np.array([i for i in range(len(indices)) if i not in reasons], dtype=np.int64)
            return self._batch(images[whole], indices[whole], damage)
        return self._replace(epoch, images, indices.copy(), reasons, damage)

    def _replace(
        self,
        epoch: int,
        images: Tensor,
        indices: NDArray[np.int64],
        reasons: dict[int, str],
        damage: tuple[Damage, ...],
    ) -> Batch:
        for _ in range(_LONGEST_RUN):
            places = np.array(sorted(reasons))
            indices[places] = self.source.following(indices[places])
            others, failed = self.make_images(self.source, self.planner, epoch, indices[places])
            images[places] = others
            reasons = {int(places[i]): reason for i, reason in failed.items()}
            if not reasons:
                return self._batch(images, indices, damage)
            damage += self._report(indices, reasons)
        raise DataError(
            f"{damage[-1].key} and the {_LONGEST_RUN} images before it are damaged; "
            f"{_listing(self.planner.data)}"
        )

    def _report(self, indices: NDArray[np.int64], reasons: dict[int, str]) -> tuple[Damage, ...]:
        return tuple(Damage(self.source.key(int(indices[i])), reasons[i]) for i in sorted(reasons))

    def _batch(
        self, images: Tensor, indices: NDArray[np.int64], damage: tuple[Damage, ...]
    ) -> Batch:
        with span("collate"):
            return Batch(
                images, self.source.labels[indices].long(), torch.from_numpy(indices), damage
            )


class DamageCount:
    """Lists an epoch's damaged images in the log and ends the job when there are too many.

    It counts one rank's since the epoch, or a resumed rest of it, began, against the share of the
    rank's whole epoch. `Batch.damage` tells the training loop the same.
    """

    def __init__(self, data: DataConfig, epoch: int, samples: int) -> None:
        self._data, self._epoch, self._samples = data, epoch, samples
        self._keys: set[str] = set()

    def add(self, batch: Batch) -> None:
        for damaged in batch.damage:
            if damaged.key in self._keys:
                continue
            self._keys.add(damaged.key)
            log.warning("epoch %d, skipped %s: %s", self._epoch, damaged.key, damaged.reason)
        allowed = self._data.max_bad_fraction
        if len(self._keys) > allowed * self._samples:
            raise DataError(
                f"{len(self._keys)} damaged images in epoch {self._epoch}, more than "
                f"data.max_bad_fraction={allowed} of {self._samples}; the last is "
                f"{batch.damage[-1].key}; {_listing(self._data)}"
            )


def _listing(data: DataConfig) -> str:
    """What tells a person of all damage at once."""
    return f'`make check-dataset ARGS="root={data.root or "FOLDER"}"` lists them all'
