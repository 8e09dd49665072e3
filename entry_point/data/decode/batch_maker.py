"""From an image maker to batches: damaged images are handled as `data.on_error` says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from entry_point.data.batch import Batch, Damage
from entry_point.data.check_command import check_command
from entry_point.data.decode.allocation import Allocate
from entry_point.data.errors import DataError
from entry_point.data.plan.balance import split_repeats
from entry_point.data.plan.crops import CropPlanner, Ints
from entry_point.data.sources.source import Source
from entry_point.data.spans import recording, span

Images = list[Tensor]
"""Those of `CropPlanner.views`: for each size uint8 (N, 3, side, side), or for several views of an
image (N, V, 3, side, side); channels last."""
MakeImages = Callable[[Source, CropPlanner, int, Ints, Allocate], tuple[Images, dict[int, str]]]
"""(source, planner, epoch, indices, allocate) -> images, with any content where damaged, and the
reason for each damaged position."""

_LONGEST_RUN = 100


@dataclass(frozen=True)
class BatchMaker:
    """Makes batches and applies `data.on_error` to damaged images.

    With `skip`, the next sample of the source replaces a damaged training sample, and a damaged
    validation sample is left out.

    Every engine treats a file as damaged if it cannot be read, has no JPEG header or ends before
    the crop does. JPEG has no checksum, so wrong bits inside a file are damage only if they make a
    decoder fail: `pillow` decodes whole files but tolerates much, the other engines decode only the
    crop, and `dali` rejects some intact files. An engine finds the same damage with any number of
    workers and after a resume.
    """

    source: Source
    planner: CropPlanner
    make_images: MakeImages
    profile: bool = False
    """Record spans: how long each part of making a batch takes."""

    def __call__(self, epoch: int, indices: Ints, allocate: Allocate) -> Batch:
        if not self.profile:
            return self._make(epoch, indices, allocate)
        with recording() as spans:
            batch = self._make(epoch, indices, allocate)
        return replace(batch, spans=tuple(spans))

    def close(self) -> None:
        """End the threads of an image maker that has its own."""
        if hasattr(self.make_images, "close"):
            self.make_images.close()

    def _make(self, epoch: int, samples: Ints, allocate: Allocate) -> Batch:
        indices, repeats = split_repeats(samples)
        planner = replace(self.planner, repeats=repeats)
        images, reasons = self.make_images(self.source, planner, epoch, indices, allocate)
        if not reasons:
            return self._batch(images, indices, ())
        damage = self._report(indices, reasons)
        if self.planner.data.on_error == "raise":
            raise DataError(
                f"{damage[0].key}: {damage[0].reason}; data.on_error=skip continues without such "
                f"images, {check_command(self.planner.data)}"
            )
        if not self.planner.train:
            good = np.array([i for i in range(len(indices)) if i not in reasons], dtype=np.int64)
            return self._batch([of[good] for of in images], indices[good], damage)
        return self._replace(planner, epoch, images, indices.copy(), reasons, damage, allocate)

    def _replace(
        self,
        planner: CropPlanner,
        epoch: int,
        images: Images,
        indices: Ints,
        reasons: dict[int, str],
        damage: tuple[Damage, ...],
        allocate: Allocate,
    ) -> Batch:
        for _ in range(_LONGEST_RUN):
            bad = np.array(sorted(reasons))
            indices[bad] = self.source.following(indices[bad])
            repeats = None if planner.repeats is None else planner.repeats[bad]
            of_bad = replace(planner, repeats=repeats)
            made, failed = self.make_images(self.source, of_bad, epoch, indices[bad], allocate)
            for of_size, others in zip(images, made, strict=True):
                of_size[bad] = others
            reasons = {int(bad[i]): reason for i, reason in failed.items()}
            if not reasons:
                return self._batch(images, indices, damage)
        last = self._report(indices, reasons)[-1].key
        raise DataError(
            f"{last} and the {_LONGEST_RUN} images before it are damaged; "
            f"{check_command(self.planner.data)}"
        )

    def _report(self, indices: Ints, reasons: dict[int, str]) -> tuple[Damage, ...]:
        return tuple(Damage(self.source.key(int(indices[i])), reasons[i]) for i in sorted(reasons))

    def _batch(self, images: Images, indices: Ints, damage: tuple[Damage, ...]) -> Batch:
        with span("collate"):
            labels = self.source.labels[indices]
            labels = labels.long() if self.source.kind == "class" else labels.float()
            batch = Batch(images[0], labels, torch.from_numpy(indices), damage)
            return replace(batch, local_images=images[1]) if images[1:] else batch
