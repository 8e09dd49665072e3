"""The damage limit, applied to the batches of any engine."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from entry_point.config.data_config import DataConfig
from entry_point.data.batch import Batch
from entry_point.data.engines.feed import PartReader
from entry_point.data.errors import DataError
from entry_point.data.plan.order import Plan
from entry_point.data.plan.schedule import Part

log = logging.getLogger(__name__)


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
