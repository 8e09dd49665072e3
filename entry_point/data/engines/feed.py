"""What an engine makes: the batches of several splits, one part after the other, without a break.

`BatchMaker` makes one batch: it reads, plans, decodes, and replaces what is damaged. While the last
batches of an epoch are used, the same workers already make the first ones of what comes next. So
neither an epoch nor an evaluation begins with an empty pipeline, and training and validation share
their workers and their memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch

from entry_point.config.data_config import DataConfig, share_to_skip
from entry_point.data.batch import Batch, Damage
from entry_point.data.decode.allocation import Allocate
from entry_point.data.decode.decoder import Decoded, Decoder
from entry_point.data.decode.own_augment import OwnAugmentation
from entry_point.data.errors import DataError
from entry_point.data.named_range import named_range
from entry_point.data.plan.crops import CropPlanner, Geometry
from entry_point.data.plan.order import Plan
from entry_point.data.plan.samples import Ints, Samples, rows, split_repeats
from entry_point.data.sources.source import (
    LONGEST_RUN,
    FileSource,
    Source,
    read_images,
    read_labels,
)

Request = tuple[str, int, Ints]
"""Split, epoch and sample indices of one batch."""
MakeBatch = Callable[[str, int, Ints], Batch]
"""Makes the batch of a Request."""
Outcome = Batch | Exception
"""A batch, or the exception that prevented it."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BatchMaker:
    """Makes the batches of a split.

    A damaged image stops the job, unless `data.max_bad_fraction` is above 0: then the next image of
    the source replaces it in training, and validation leaves it out.

    Every decoder treats a file as damaged if it cannot be read, has no image header or ends before
    the crop does. JPEG has no checksum, so wrong bits inside a file are damage only if they make a
    decoder fail: Pillow decodes whole JPEGs but tolerates much, the others decode only the crop,
    and DALI rejects some intact files. An engine finds the same damage with any number of workers
    and after a resume.
    """

    source: Source
    planner: CropPlanner
    decoder: Decoder
    augmentation: OwnAugmentation | None = None
    """Your own, of training samples."""

    def __call__(self, epoch: int, request: Ints, allocate: Allocate) -> Batch:
        """The batch of the images of `request`; see `with_repeats` for those drawn before."""
        images, repeats = split_repeats(request)
        decoded, geometry = self._decode(epoch, images, repeats, allocate)
        damage = self._report(images, decoded.damage)
        if damage and not self.planner.data.max_bad_fraction:
            share = share_to_skip(len(damage), len(self.source))
            skip = f"data.max_bad_fraction={share} continues without such images, " if share else ""
            raise DataError(
                f"{damage[0].key}: {damage[0].reason}; {skip}{self.planner.data.check_command()}"
            )
        if damage and self.planner.train:
            self._replace(epoch, images, repeats, decoded, geometry, allocate)
        elif damage:
            good = np.delete(np.arange(len(images)), list(decoded.damage))
            images, decoded = images[good], replace(decoded, images=decoded.images[good])
            geometry = geometry.of(good)
        with named_range("collate"):
            numbers = np.repeat(images, self.planner.views)
            return Batch(
                decoded.images,
                read_labels(self.source, numbers, geometry),
                torch.from_numpy(numbers),
                damage,
                stale_indexes=decoded.stale_indexes,
                geometry=geometry,
            )

    def close(self) -> None:
        """End the threads of a decoder that has its own."""
        self.decoder.close()

    def _decode(
        self, epoch: int, images: Ints, repeats: Ints, allocate: Allocate
    ) -> tuple[Decoded, Geometry]:
        """The samples of these images, and where they lie in them."""
        samples = Samples.of(epoch, images, repeats, self.planner.views)
        with named_range("read"):
            encoded = read_images(self.source, images, with_indexes=self.decoder.uses_indexes)
        with named_range("plan"):
            opened = self.decoder.open(encoded)
            sizes = opened.sizes
            plan = self.planner.plan(samples, *sizes)
            of_samples = (np.repeat(each, self.planner.views) for each in sizes)
        with named_range("decode"):
            decoded = opened.decode(plan, allocate)
        if decoded.new_indexes and isinstance(self.source, FileSource):
            self.source.keep_indexes(images, decoded.new_indexes)
        if self.augmentation is not None and self.planner.train:
            with named_range("augment"):
                damaged = rows(sorted(decoded.damage), self.planner.views)
                self.augmentation(decoded.images, samples, self.planner.seed, damaged)
        lies = Geometry(plan.side, plan.boxes, plan.flips, *of_samples, training=self.planner.train)
        return decoded, lies

    def _replace(
        self,
        epoch: int,
        images: Ints,
        repeats: Ints,
        decoded: Decoded,
        geometry: Geometry,
        allocate: Allocate,
    ) -> None:
        """Put the next images that are not damaged in the place of damaged ones."""
        reasons, by_image = decoded.damage, decoded.images.unflatten(0, (len(images), -1))
        for _ in range(LONGEST_RUN):
            bad = np.array(sorted(reasons))
            images[bad] = self.source.following(images[bad])
            others, lying = self._decode(epoch, images[bad], repeats[bad], allocate)
            # DALI's are on the GPU, Pillow's are not
            by_image[bad] = others.images.to(by_image.device).unflatten(0, (len(bad), -1))
            geometry.replace(rows(bad.tolist(), self.planner.views), lying)
            reasons = {int(bad[i]): reason for i, reason in others.damage.items()}
            if not reasons:
                return
        last = self._report(images, reasons)[-1].key
        raise DataError(
            f"{last} and the {LONGEST_RUN} images before it are damaged; "
            f"{self.planner.data.check_command()}"
        )

    def _report(self, images: Ints, reasons: dict[int, str]) -> tuple[Damage, ...]:
        return tuple(Damage(self.source.key(int(images[i])), reasons[i]) for i in sorted(reasons))


@dataclass(frozen=True)
class Part:
    """The batches of one epoch of one split, from `step` on."""

    split: str
    epoch: int
    step: int = 0


After = Callable[[Part], Part | None]
"""The part whose batches are made while the last ones of a part are still used; None: no part."""


def nothing_after(_part: Part) -> None:
    """Each part is read on its own."""


@dataclass(frozen=True)
class Schedule:
    """Epochs of training, with evaluations in between."""

    epochs: int
    evaluate_every_epochs: int

    def evaluates_after(self, epoch: int) -> bool:
        return (epoch + 1) % self.evaluate_every_epochs == 0 or epoch + 1 == self.epochs

    def after(self, part: Part) -> Part | None:
        """See After. An evaluation has the number of the epoch before it."""
        if part.split == "train" and self.evaluates_after(part.epoch):
            return Part("val", part.epoch)
        following = part.epoch + 1
        return Part("train", following) if following < self.epochs else None


@dataclass
class Feed:
    """The makers and plans of each split, and which part comes after which."""

    makers: Mapping[str, BatchMaker]
    plans: Mapping[str, Plan]
    after: After = nothing_after
    _taken: list[str] = field(default_factory=list, init=False)

    def steps(self, part: Part) -> int:
        return self.plans[part.split].steps_per_epoch - part.step

    @property
    def most_steps(self) -> int:
        """Steps of the longest part."""
        return max(plan.steps_per_epoch for plan in self.plans.values())

    def requests(self, part: Part) -> Iterator[Request]:
        """The requests of `part` and of all that comes after it."""
        following: Part | None = part
        while following is not None:
            for indices in self.plans[following.split].batches(following.epoch, following.step):
                self._release_taken(following.split)
                yield following.split, following.epoch, indices
            following = self.after(following)

    def make(self, split: str, epoch: int, indices: Ints, allocate: Allocate) -> Batch:
        return self.makers[split](epoch, indices, allocate=allocate)

    def read_ahead(self, reader: ThreadPoolExecutor) -> None:
        """See Plan."""
        for plan in self.plans.values():
            plan.read_ahead(reader)

    def taken(self, part: Part) -> None:
        """All batches of `part` have been taken; `requests` may drop the bytes behind them."""
        self._taken.append(part.split)

    def _release_taken(self, current: str) -> None:
        # Here, and not in `taken`: one thread alone reads ahead and releases.
        while self._taken:
            if (split := self._taken.pop()) != current:
                self.plans[split].release()

    def release(self) -> None:
        """Drop all bytes that were read ahead."""
        self._taken.clear()
        for plan in self.plans.values():
            plan.release()

    def close(self) -> None:
        """End the threads of image makers that have their own."""
        for maker in self.makers.values():
            maker.close()


class Engine(Protocol):
    """Makes the outcomes of a Feed's requests ahead of use, in threads or processes."""

    def start(self, part: Part) -> Iterator[Outcome]:
        """The outcomes of `part` and of all that comes after it, as `Feed.requests`."""
        ...

    def stop(self) -> None:
        """End what was started."""
        ...

    def close(self) -> None:
        """End the threads and processes."""
        ...


class PartReader:
    """Cuts the outcomes of an engine into parts.

    Reading another part than the next one stops the engine and starts it with that part.
    """

    def __init__(self, feed: Feed, engine: Engine) -> None:
        self._feed, self._engine = feed, engine
        self._running: Iterator[Outcome] | None = None
        self._next: Part | None = None

    def read(self, part: Part) -> Iterator[Outcome]:
        """For each step of `part`, its outcome. Ends the part that is being read."""
        if self._running is None or part != self._next:
            self.stop()
            self._running = self._engine.start(part)
        self._next = None
        return self._cut(part, self._running)

    def _cut(self, part: Part, running: Iterator[Outcome]) -> Iterator[Outcome]:
        if not (steps := self._feed.steps(part)):
            self._next = self._feed.after(part)
        for left in range(steps, 0, -1):
            if running is not self._running:  # another part has been started
                return
            if (outcome := next(running, None)) is None:
                break
            if left == 1:
                self._next = self._feed.after(part)
                self._feed.taken(part)
            yield outcome
        if running is self._running and self._next is None:
            self.stop()

    def stop(self) -> None:
        """End the part that is being read, and what is made ahead."""
        self._running = self._next = None
        self._engine.stop()

    def close(self) -> None:
        """End the engine's threads and processes."""
        self.stop()
        self._engine.close()
        self._feed.close()


class CheckedLoader:
    """A Loader that logs each damaged image and stops above `data.max_bad_fraction`.

    It counts this rank's damaged images since the epoch began or resumed, as a fraction of the
    rank's whole epoch. `Batch.damage` reports the same images.
    """

    def __init__(self, parts: PartReader, split: str, plan: Plan, data: DataConfig) -> None:
        self.steps_per_epoch = plan.steps_per_epoch
        self._parts, self._split = parts, split
        self._data, self._samples = data, plan.samples_per_epoch
        self._closed = False

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """The epoch's batches from `start_step` on; skipped steps cost nothing.

        It begins with the first batch, and ends the epoch that is being read, of any loader that
        shares the engine.
        """
        if self._closed:
            raise RuntimeError("the loader is closed")
        keys: set[str] = set()
        stale = 0
        for outcome in self._parts.read(Part(self._split, epoch, start_step)):
            if isinstance(outcome, Exception):
                self._parts.stop()
                raise outcome
            self._check(outcome, epoch, keys)
            stale += outcome.stale_indexes
            yield outcome
        if stale:
            log.warning(
                "epoch %d: %d images do not match their side indexes, and decoded slower, to the "
                "same pixels; %s",
                *(epoch, stale, self._data.check_command()),
            )

    def close(self) -> None:
        """End the engine's threads and processes."""
        self._closed = True
        self._parts.close()

    def _check(self, batch: Batch, epoch: int, keys: set[str]) -> None:
        """Log the batch's damaged images that are not in `keys`, and add them."""
        for damaged in batch.damage:
            if damaged.key not in keys:
                keys.add(damaged.key)
                log.warning("epoch %d, skipped %s: %s", epoch, damaged.key, damaged.reason)
        allowed = self._data.max_bad_fraction
        if len(keys) > allowed * self._samples:
            raise DataError(
                f"{len(keys)} damaged images in epoch {epoch}, more than "
                f"data.max_bad_fraction={allowed} of {self._samples}; the last is "
                f"{batch.damage[-1].key}; {self._data.check_command()}"
            )
