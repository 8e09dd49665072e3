"""From an image maker to batches: damaged images are handled as `data.on_error` says."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from entry_point.data.batch import Batch, Damage
from entry_point.data.check_command import check_command
from entry_point.data.decode.allocation import Allocate
from entry_point.data.decode.made_images import MadeImages, MakeImages
from entry_point.data.errors import DataError
from entry_point.data.plan.balance import split_repeats
from entry_point.data.plan.crops import CropPlanner, Ints
from entry_point.data.sources.source import Source
from entry_point.data.spans import recording, span

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
        made = self.make_images(self.source, planner, epoch, indices, allocate)
        if not made.damage:
            return self._batch(made, indices, ())
        damage = self._report(indices, made.damage)
        if self.planner.data.on_error == "raise":
            raise DataError(
                f"{damage[0].key}: {damage[0].reason}; data.on_error=skip continues without such "
                f"images, {check_command(self.planner.data)}"
            )
        if not self.planner.train:
            keep = [i for i in range(len(indices)) if i not in made.damage]
            good = np.array(keep, dtype=np.int64)
            made = replace(made, images=made.images[good])
            return self._batch(made, indices[good], damage)
        indices = indices.copy()
        self._replace(planner, epoch, made, indices, allocate)
        return self._batch(made, indices, damage)

    def _replace(
        self,
        planner: CropPlanner,
        epoch: int,
        made: MadeImages,
        indices: Ints,
        allocate: Allocate,
    ) -> None:
        """Put the next samples that are not damaged in the place of damaged ones."""
        reasons = made.damage
        for _ in range(_LONGEST_RUN):
            bad = np.array(sorted(reasons))
            indices[bad] = self.source.following(indices[bad])
            repeats = None if planner.repeats is None else planner.repeats[bad]
            of_bad = replace(planner, repeats=repeats)
            others = self.make_images(self.source, of_bad, epoch, indices[bad], allocate)
            made.images[bad] = others.images
            reasons = {int(bad[i]): reason for i, reason in others.damage.items()}
            if not reasons:
                return
        last = self._report(indices, reasons)[-1].key
        raise DataError(
            f"{last} and the {_LONGEST_RUN} images before it are damaged; "
            f"{check_command(self.planner.data)}"
        )

    def _report(self, indices: Ints, reasons: dict[int, str]) -> tuple[Damage, ...]:
        return tuple(Damage(self.source.key(int(indices[i])), reasons[i]) for i in sorted(reasons))

    def _batch(self, made: MadeImages, indices: Ints, damage: tuple[Damage, ...]) -> Batch:
        with span("collate"):
            labels = self.source.labels[indices]
            labels = labels.long() if self.source.kind == "class" else labels.float()
            numbers = torch.from_numpy(indices)
            return Batch(made.images, labels, numbers, damage, stale_indexes=made.stale_indexes)
