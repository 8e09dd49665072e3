"""Batches made by threads, ahead of their use, on SPDL's pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray

from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.data.batch import Batch, allocate_in_pinned_memory
from entry_point.data.decode.batch_maker import BatchMaker, DamageCount
from entry_point.data.engines.spdl_pipeline import Pipeline, PipelineBuilder
from entry_point.data.plan.order import Plan

_DALI_CALLERS = 2
MakeBatch = Callable[[int, NDArray[np.int64]], Batch]
Request = tuple[int, NDArray[np.int64]]
"""Epoch and sample indices of one batch."""


class BatchThreads:
    """Threads that make a plan's batches in order; the operator leaves the GIL while it works.

    Until the first epoch there is no thread, and it can be handed to another process.
    """

    def __init__(self, make_batch: MakeBatch, plan: Plan, threads: int, ahead: int) -> None:
        self._make_batch, self._plan = make_batch, plan
        self._threads, self._ahead = max(1, threads), ahead
        self._pipeline: Pipeline[Batch | Exception] | None = None
        self._reader: ThreadPoolExecutor | None = None

    def outcomes(self, epoch: int, start_step: int) -> Iterator[Batch | Exception]:
        """A batch, or why there is none, for each step from `start_step` on.

        It ends whichever epoch was running.
        """
        self.stop()
        if self._reader is None:
            self._reader = ThreadPoolExecutor(1, "shard-reader")
            self._plan.read_ahead(self._reader, here=True)
        builder: PipelineBuilder[Request | Exception, Batch | Exception] = PipelineBuilder()
        self._pipeline = (
            builder.add_source(self._requests(epoch, start_step))
            .pipe(self._make, concurrency=self._threads, output_order="input")
            .add_sink(self._ahead)
            .build(num_threads=self._threads)
        )
        self._pipeline.start()
        return self._outcomes(self._pipeline)

    def _outcomes(self, pipeline: Pipeline[Batch | Exception]) -> Iterator[Batch | Exception]:
        for outcome in pipeline.get_iterator():
            if pipeline is not self._pipeline:  # the epoch was left; some batches were ready
                return
            yield outcome
        if pipeline is self._pipeline:
            self.stop()

    def stop(self) -> None:
        """End the epoch; returns when the batches that are being made are done."""
        while self._pipeline is not None:
            try:
                self._pipeline.stop()
            except TimeoutError:  # SPDL waits for some seconds; a batch may take longer
                continue
            self._pipeline = None
            self._plan.release()

    def close(self) -> None:
        """End the threads."""
        self.stop()
        if self._reader is not None:
            self._reader.shutdown(cancel_futures=True)

    # An exception travels like a batch: SPDL would wrap the plan's in a group of its own, and log
    # that of a batch and leave the batch out.

    def _requests(self, epoch: int, start_step: int) -> Iterator[Request | Exception]:
        try:
            for indices in self._plan.batches(epoch, start_step):
                yield epoch, indices
        except Exception as error:
            yield error

    def _make(self, request: Request | Exception) -> Batch | Exception:
        if isinstance(request, Exception):
            return request
        try:
            return self._make_batch(*request)
        except Exception as error:
            return error


class ThreadLoader:
    """A Loader whose threads belong to the training process."""

    def __init__(
        self,
        make_batch: BatchMaker,
        plan: Plan,
        data: DataConfig,
        pipeline: PipelineConfig,
        device: torch.device,
    ) -> None:
        self.steps_per_epoch = plan.steps_per_epoch
        self._data, self._samples = data, plan.samples_per_epoch
        self._end_maker = make_batch.close
        make = _for_gpu(make_batch, device) if device.type == "cuda" else make_batch
        # DALI has threads of its own: one of ours reads while they work for the other.
        threads = _DALI_CALLERS if pipeline.engine == "dali" else pipeline.worker_count()
        self._threads = BatchThreads(make, plan, threads, pipeline.prefetch)
        self._closed = False

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """The epoch's batches from `start_step` on; the steps before it cost nothing.

        It ends whichever epoch was running.
        """
        if self._closed:
            raise RuntimeError("the loader is closed")
        return self._checked(self._threads.outcomes(epoch, start_step), epoch)

    def close(self) -> None:
        """End the threads."""
        self._closed = True
        self._threads.close()
        self._end_maker()

    def _checked(self, outcomes: Iterator[Batch | Exception], epoch: int) -> Iterator[Batch]:
        count = DamageCount(self._data, epoch, self._samples)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                self._threads.stop()
                raise outcome
            count.add(outcome)
            yield outcome


def _for_gpu(make_batch: MakeBatch, device: torch.device) -> MakeBatch:
    """Batches in pinned memory or on the GPU, finished and readable from any stream.

    A thread begins on GPU 0 and on the stream that training computes on, so it is told its own.
    """
    allocate_in_pinned_memory()
    stream = torch.cuda.Stream(device)

    def make(epoch: int, indices: NDArray[np.int64]) -> Batch:
        with torch.cuda.stream(stream):
            batch = make_batch(epoch, indices)
            if not batch.images.is_cuda:
                return batch.pin_memory()
            stream.synchronize()
            return batch

    return make
