"""Batches made by threads of the training process, ahead of their use, on SPDL's pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray
from spdl.pipeline import Pipeline, PipelineBuilder

from entry_point.data.batch import Batch
from entry_point.data.config import DataConfig, PipelineConfig
from entry_point.data.damage import BatchMaker, DamageCount
from entry_point.data.sampling import Plan

Request = tuple[int, NDArray[np.int64]]
"""Epoch and sample indices of one batch."""


class ThreadLoader:
    """A Loader without other processes: the operator leaves the GIL while it works on a batch."""

    def __init__(
        self,
        make_batch: BatchMaker,
        plan: Plan,
        data: DataConfig,
        pipeline: PipelineConfig,
        pin_memory: bool,
    ) -> None:
        self.steps_per_epoch = plan.steps_per_epoch
        self._plan, self._make_batch, self._pin_memory = plan, make_batch, pin_memory
        self._data = data
        self._threads = max(1, pipeline.worker_count())
        self._ahead = pipeline.prefetch
        self._pipeline: Pipeline[Batch | Exception] | None = None
        self._reader = ThreadPoolExecutor(1, "shard-reader")
        plan.read_ahead(self._reader)
        self._closed = False

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """The epoch's batches from `start_step` on; the steps before it cost nothing.

        It ends whichever epoch was running.
        """
        if self._closed:
            raise RuntimeError("the loader is closed")
        self._stop()
        requests = ((epoch, indices) for indices in self._plan.batches(epoch, start_step))
        builder: PipelineBuilder[Request, Batch | Exception] = PipelineBuilder()
        self._pipeline = (
            builder.add_source(requests)
            .pipe(self._make, concurrency=self._threads, output_order="input")
            .add_sink(self._ahead)
            .build(num_threads=self._threads)
        )
        self._pipeline.start()
        return self._checked(self._pipeline, epoch)

    def close(self) -> None:
        """End the threads."""
        self._closed = True
        self._stop()
        self._reader.shutdown(cancel_futures=True)

    def _make(self, request: Request) -> Batch | Exception:
        try:
            batch = self._make_batch(*request)
            return batch.pin_memory() if self._pin_memory else batch
        except Exception as error:  # SPDL would log it and leave the batch out
            return error

    def _checked(self, pipeline: Pipeline[Batch | Exception], epoch: int) -> Iterator[Batch]:
        count = DamageCount(self._data, epoch, self._plan.samples_per_epoch)
        for outcome in pipeline.get_iterator():
            if isinstance(outcome, Exception):
                self._stop()
                raise outcome
            count.add(outcome)
            yield outcome

    def _stop(self) -> None:
        if self._pipeline is not None:
            self._pipeline.stop()
            self._pipeline = None
