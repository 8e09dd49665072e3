"""From samples' numbers to a batch: read, plan, decode, and replace what is damaged."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from entry_point.data.batch import Batch, Damage
from entry_point.data.decode.allocation import Allocate
from entry_point.data.decode.decoder import Decoded, Decoder
from entry_point.data.decode.own_augment import OwnAugmentation
from entry_point.data.errors import DataError
from entry_point.data.plan.crops import CropPlanner
from entry_point.data.plan.samples import Ints, Samples, rows, split_repeats
from entry_point.data.sources.source import FileSource, Source, read_images
from entry_point.data.spans import recording, span

_LONGEST_RUN = 100


@dataclass(frozen=True)
class BatchMaker:
    """Makes the batches of a split.

    A damaged image stops the job, unless `data.max_bad_fraction` is above 0: then the next image of
    the source replaces it in training, and validation leaves it out.

    Every decoder treats a file as damaged if it cannot be read, has no JPEG header or ends before
    the crop does. JPEG has no checksum, so wrong bits inside a file are damage only if they make a
    decoder fail: Pillow decodes whole files but tolerates much, the others decode only the crop,
    and DALI rejects some intact files. An engine finds the same damage with any number of workers
    and after a resume.
    """

    source: Source
    planner: CropPlanner
    decoder: Decoder
    augmentation: OwnAugmentation | None = None
    """Your own, of training samples."""
    profile: bool = False
    """Record spans: how long each part of making a batch takes."""

    def __call__(self, epoch: int, request: Ints, allocate: Allocate) -> Batch:
        """The batch of the images of `request`; see `with_repeats` for those drawn before."""
        if not self.profile:
            return self._make(epoch, request, allocate)
        with recording() as spans:
            batch = self._make(epoch, request, allocate)
        return replace(batch, spans=tuple(spans))

    def close(self) -> None:
        """End the threads of a decoder that has its own."""
        self.decoder.close()

    def _make(self, epoch: int, request: Ints, allocate: Allocate) -> Batch:
        images, repeats = split_repeats(request)
        decoded = self._decode(epoch, images, repeats, allocate)
        damage = self._report(images, decoded.damage)
        if damage and not self.planner.data.max_bad_fraction:
            raise DataError(
                f"{damage[0].key}: {damage[0].reason}; data.max_bad_fraction=0.01 continues "
                f"without such images, {self.planner.data.check_command()}"
            )
        if damage and self.planner.train:
            self._replace(epoch, images, repeats, decoded, allocate)
        elif damage:
            good = np.delete(np.arange(len(images)), list(decoded.damage))
            images, decoded = images[good], replace(decoded, images=decoded.images[good])
        with span("collate"):
            numbers = np.repeat(images, self.planner.views)
            labels = self.source.labels[numbers]
            return Batch(
                decoded.images,
                labels.long() if self.source.kind == "class" else labels.float(),
                torch.from_numpy(numbers),
                damage,
                stale_indexes=decoded.stale_indexes,
            )

    def _decode(self, epoch: int, images: Ints, repeats: Ints, allocate: Allocate) -> Decoded:
        """The samples of these images."""
        encoded = read_images(self.source, images, with_indexes=self.decoder.uses_indexes)
        opened = self.decoder.open(encoded)
        samples = Samples.of(epoch, images, repeats, self.planner.views)
        with span("plan"):
            plan = self.planner.plan(samples, *opened.sizes)
        decoded = opened.decode(plan, allocate)
        if decoded.new_indexes and isinstance(self.source, FileSource):
            self.source.keep_indexes(images, decoded.new_indexes)
        if self.augmentation is not None and self.planner.train:
            with span("augment"):
                damaged = rows(sorted(decoded.damage), self.planner.views)
                self.augmentation(decoded.images, samples, self.planner.seed, damaged)
        return decoded

    def _replace(
        self, epoch: int, images: Ints, repeats: Ints, decoded: Decoded, allocate: Allocate
    ) -> None:
        """Put the next images that are not damaged in the place of damaged ones."""
        reasons, by_image = decoded.damage, decoded.images.unflatten(0, (len(images), -1))
        for _ in range(_LONGEST_RUN):
            bad = np.array(sorted(reasons))
            images[bad] = self.source.following(images[bad])
            others = self._decode(epoch, images[bad], repeats[bad], allocate)
            by_image[bad] = others.images.unflatten(0, (len(bad), -1))
            reasons = {int(bad[i]): reason for i, reason in others.damage.items()}
            if not reasons:
                return
        last = self._report(images, reasons)[-1].key
        raise DataError(
            f"{last} and the {_LONGEST_RUN} images before it are damaged; "
            f"{self.planner.data.check_command()}"
        )

    def _report(self, images: Ints, reasons: dict[int, str]) -> tuple[Damage, ...]:
        return tuple(Damage(self.source.key(int(images[i])), reasons[i]) for i in sorted(reasons))
