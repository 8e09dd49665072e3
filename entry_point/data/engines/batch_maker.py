"""`BatchMaker` makes one batch: it reads, plans, decodes, and replaces damaged images. An engine
runs it ahead of use."""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.profiler import record_function

from entry_point.config.commands import check_command
from entry_point.data.batch import Batch, Damage
from entry_point.data.decode.allocation import Allocate
from entry_point.data.decode.decode import BatchDecoder
from entry_point.data.decode.own_augment import OwnAugmentation
from entry_point.data.errors import DataError, share_to_skip
from entry_point.data.plan.crops import CropPlanner, Geometry
from entry_point.data.plan.samples import Ints, Samples, rows, split_repeats
from entry_point.data.sources.source import (
    LONGEST_RUN,
    Source,
    read_images,
    read_labels,
)
from entry_point.job.text import counted

Request = tuple[int, Ints]
"""Epoch and sample indices of one batch."""
Outcome = Batch | Exception
"""A batch, or the exception that prevented it."""
_MISSING = os.strerror(errno.ENOENT)
"""The reason given for a file that was removed after the folder was listed."""


class Engine(Protocol):
    """Makes batches ahead of use, in threads or processes."""

    def start(self, requests: Iterator[Request]) -> Iterator[Outcome]:
        """Returns the outcomes of the requests, in order. Call `stop` before the next
        `start`."""
        ...

    def stop(self) -> None:
        """End the work on the requests, and drop outcomes that were made ahead."""
        ...


@dataclass(frozen=True)
class BatchMaker:
    """Makes the batches of a split.

    A damaged image stops the job, unless `data.max_bad_fraction` is above 0: then training replaces
    it by the next image of the source, and validation leaves it out.

    All decoders treat a file as damaged if it cannot be read, has no image header or ends before
    the crop does. JPEG has no checksum, so wrong bits inside a file are damage only if a decoder
    fails: Pillow decodes whole JPEGs but tolerates many errors, the others decode only the crop,
    and DALI rejects some intact files. An engine reports the same damage with any number of workers
    and after a resume.
    """

    source: Source
    planner: CropPlanner
    decoder: BatchDecoder
    augmentation: OwnAugmentation | None = None
    """Your own augmentation of training samples."""

    def __call__(self, epoch: int, request: Ints, allocate: Allocate) -> Batch:
        """Returns the batch for the images of `request`, which `with_repeats` describes."""
        began = math.nan if self.decoder.has_threads else time.thread_time()
        images, repeats = split_repeats(request)
        pixels, reasons, geometry = self._decode(epoch, images, repeats, allocate)
        damage = self._report(images, reasons)
        if damage and not self.planner.data.max_bad_fraction:
            share = share_to_skip(len(damage), len(self.source))
            skip = f"data.max_bad_fraction={share} continues without such images, " if share else ""
            if self.planner.data.format == "folder" and damage[0].reason == _MISSING:
                skip = "restore it, as no run resumes with fewer images, "
            raise DataError(
                f"{damage[0].key}: {damage[0].reason}; {skip}{check_command(self.planner.data)}"
            )
        if damage and self.planner.train:
            self._replace(epoch, images, repeats, pixels, reasons, geometry, allocate)
        elif damage:
            good = np.delete(np.arange(len(images)), list(reasons))
            images, pixels, geometry = images[good], pixels[good], geometry.of(good)
        with record_function("collate"):
            numbers = np.repeat(images, self.planner.views)
            return Batch(
                pixels,
                read_labels(self.source, numbers, geometry),
                torch.from_numpy(numbers),
                damage,
                geometry=geometry,
                cpu_s=time.thread_time() - began,
            )

    def _decode(
        self, epoch: int, images: Ints, repeats: Ints, allocate: Allocate
    ) -> tuple[Tensor, dict[int, str], Geometry]:
        """Returns the images' samples, the reason for each damaged image by its position, and the
        samples' geometry."""
        samples = Samples.of(epoch, images, repeats, self.planner.views)
        with record_function("read"):
            encoded = read_images(self.source, images, with_indexes=self.decoder.uses_indexes)
        with record_function("plan"):
            sizes = self.decoder.sizes(encoded)
            plan = self.planner.plan(samples, *sizes)
            of_samples = (np.repeat(each, self.planner.views) for each in sizes)
        with record_function("decode"):
            pixels, reasons = self.decoder.decode(encoded, plan, allocate)
        if self.augmentation is not None and self.planner.train:
            with record_function("augment"):
                damaged = rows(sorted(reasons), self.planner.views)
                self.augmentation(pixels, samples, self.planner.seed, damaged)
        lies = Geometry(plan.side, plan.boxes, plan.flips, *of_samples, training=self.planner.train)
        return pixels, reasons, lies

    def _replace(
        self,
        epoch: int,
        images: Ints,
        repeats: Ints,
        pixels: Tensor,
        reasons: dict[int, str],
        geometry: Geometry,
        allocate: Allocate,
    ) -> None:
        """Replace each damaged image by the next intact one of the source."""
        by_image = pixels.unflatten(0, (len(images), -1))
        others_tried = min(LONGEST_RUN, len(self.source) - 1)
        for _ in range(others_tried):
            bad = np.array(sorted(reasons))
            images[bad] = (images[bad] + 1) % len(self.source)
            others, why, lying = self._decode(epoch, images[bad], repeats[bad], allocate)
            by_image[bad] = others.unflatten(0, (len(bad), -1))
            geometry.replace(rows(bad.tolist(), self.planner.views), lying)
            reasons = {int(bad[i]): reason for i, reason in why.items()}
            if not reasons:
                return
        last, before = self._report(images, reasons)[-1].key, counted(others_tried, "image")
        raise DataError(
            f"{last} and the {before} before it are damaged; {check_command(self.planner.data)}"
        )

    def _report(self, images: Ints, reasons: dict[int, str]) -> tuple[Damage, ...]:
        return tuple(Damage(self.source.key(int(images[i])), reasons[i]) for i in sorted(reasons))
