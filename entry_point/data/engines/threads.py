"""The engines `threads` and `dali`: threads of the training process make batches ahead of use."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import torch
from spdl.pipeline import Pipeline, PipelineBuilder

from entry_point.data.batch import Batch
from entry_point.data.decode.allocation import pinned_memory, reused_memory
from entry_point.data.decode.batch_maker import BatchMaker, MakeBatch, Request
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.plan.crops import Ints
from entry_point.data.plan.order import Plan

_DALI_CALLERS = 2


class BatchThreads:
    """Threads that make a plan's batches in order; the operator releases the GIL while it works.

    No thread starts before the first epoch; until then a BatchThreads can be pickled.
    """

    def __init__(self, make_batch: MakeBatch, plan: Plan, threads: int, ahead: int) -> None:
        self._make_batch, self._plan = make_batch, plan
        self._threads, self._ahead = max(1, threads), ahead
        self._pipeline: Pipeline[Batch | Exception] | None = None
        self._reader: ThreadPoolExecutor | None = None

    def outcomes(self, epoch: int, start_step: int) -> Iterator[Batch | Exception]:
        """For each step from `start_step` on, the batch or the exception that prevented it.

        Ends the epoch that is running.
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
            if pipeline is not self._pipeline:  # another epoch has started; drop ready batches
                return
            yield outcome
        if pipeline is self._pipeline:
            self.stop()

    def stop(self) -> None:
        """End the epoch; returns once the batches in progress are finished."""
        while self._pipeline is not None:
            try:
                self._pipeline.stop()
            except TimeoutError:  # SPDL waits a few seconds; a batch may take longer
                continue
            self._pipeline = None
            self._plan.release()

    def close(self) -> None:
        """End the threads."""
        self.stop()
        if self._reader is not None:
            self._reader.shutdown(cancel_futures=True)

    # An exception travels like a batch. SPDL would wrap an exception of the plan in an exception
    # group, and log one of a batch and drop that batch.

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


class ThreadEngine:
    """Makes batches in threads of the training process."""

    def __init__(self, make_batch: BatchMaker, plan: Plan, spec: LoaderSpec) -> None:
        self._close_maker = make_batch.close
        make: MakeBatch = partial(make_batch, allocate=reused_memory)
        # DALI has its own threads: one of ours reads files while DALI works for the other.
        dali = spec.pipeline.engine == "dali"
        if spec.device.type == "cuda":
            make = (_on_gpu if dali else _for_gpu)(make_batch, spec.device)
        threads = _DALI_CALLERS if dali else spec.pipeline.worker_count()
        self._threads = BatchThreads(make, plan, threads, spec.pipeline.prefetch)

    def epoch(self, epoch: int, start_step: int) -> Iterator[Batch]:
        return self._batches(self._threads.outcomes(epoch, start_step))

    def _batches(self, outcomes: Iterator[Batch | Exception]) -> Iterator[Batch]:
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                self._threads.stop()
                raise outcome
            yield outcome

    def close(self) -> None:
        self._threads.close()
        self._close_maker()


def _for_gpu(make_batch: BatchMaker, device: torch.device) -> MakeBatch:
    """Batches in pinned memory.

    A new thread uses GPU 0: whatever it asks of CUDA would start a context of 0.5 GB there.
    """

    def make(epoch: int, indices: Ints) -> Batch:
        with torch.cuda.device(device):
            return make_batch(epoch, indices, pinned_memory).pin_memory()

    return make


def _on_gpu(make_batch: BatchMaker, device: torch.device) -> MakeBatch:
    """Batches on the GPU, finished and readable from any stream; labels in pinned memory.

    They are made on a stream of their own: training computes on the default stream.
    """
    stream = torch.cuda.Stream(device)

    def make(epoch: int, indices: Ints) -> Batch:
        with torch.cuda.device(device), torch.cuda.stream(stream):
            batch = make_batch(epoch, indices, pinned_memory)
            stream.synchronize()
            labels, numbers = batch.labels.pin_memory(), batch.indices.pin_memory()
            return replace(batch, labels=labels, indices=numbers)

    return make
