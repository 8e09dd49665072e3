"""The engines `threads` and `dali`: threads of the training process make batches ahead of use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from spdl.pipeline import Pipeline, PipelineBuilder

from entry_point.data.batch import Batch
from entry_point.data.decode.allocation import pinned_memory, reused_memory
from entry_point.data.engines.batch_maker import BatchMaker, Outcome, Request
from entry_point.data.loader_spec import AHEAD, DALI_CALLERS, LoaderSpec
from entry_point.data.plan.samples import Ints
from entry_point.data.retries import without_retries

MakeBatch = Callable[[int, Ints], Batch]
"""Makes the batch for a Request."""


class ThreadEngine:
    """Makes batches in order in threads of the training process.

    The operator releases the GIL while it works. Threads start with the first epoch.
    """

    def __init__(self, maker: BatchMaker, spec: LoaderSpec) -> None:
        self._make_batch: MakeBatch = partial(maker, allocate=reused_memory)
        dali = spec.pipeline.engine == "dali"
        if spec.device.type == "cuda":
            self._make_batch = (_on_gpu if dali else _for_gpu)(maker, spec.device)
        self._threads = DALI_CALLERS if dali else max(1, spec.pipeline.worker_count())
        self._pipeline: Pipeline[Outcome] | None = None

    def start(self, requests: Iterator[Request]) -> Iterator[Outcome]:
        """See Engine."""
        builder: PipelineBuilder[Request | Exception, Outcome] = PipelineBuilder()
        self._pipeline = (
            builder.add_source(_with_error(requests))
            .pipe(self._make, concurrency=self._threads, output_order="input")
            .add_sink(AHEAD)
            .build(num_threads=self._threads)
        )
        self._pipeline.start()
        return iter(self._pipeline.get_iterator())

    def stop(self) -> None:
        """See Engine. Waits for the batches in progress."""
        with without_retries():
            while self._pipeline is not None:
                try:
                    self._pipeline.stop()
                except TimeoutError:  # SPDL waits a few seconds only; a batch may take longer
                    continue
                self._pipeline = None

    # Exceptions are passed on as values: SPDL would wrap the plan's exception in a group, and log
    # that of a batch but drop the batch.

    def _make(self, request: Request | Exception) -> Outcome:
        if isinstance(request, Exception):
            return request
        try:
            return self._make_batch(*request)
        except Exception as error:
            return error


def _with_error(requests: Iterator[Request]) -> Iterator[Request | Exception]:
    try:
        yield from requests
    except Exception as error:
        yield error


def _for_gpu(maker: BatchMaker, device: torch.device) -> MakeBatch:
    """Returns a maker of batches in pinned memory.

    The maker selects the device: a new thread uses GPU 0, where any CUDA call would create a
    context of 0.5 GB.
    """

    def make(epoch: int, indices: Ints) -> Batch:
        with torch.cuda.device(device):
            return maker(epoch, indices, pinned_memory).pin_memory()

    return make


def _on_gpu(maker: BatchMaker, device: torch.device) -> MakeBatch:
    """Returns a maker of batches on the GPU, complete and readable from any stream; labels are in
    pinned memory.

    The maker uses a separate stream, because training computes on the default stream.
    """
    stream = torch.cuda.Stream(device)

    def make(epoch: int, indices: Ints) -> Batch:
        with torch.cuda.device(device), torch.cuda.stream(stream):
            batch = maker(epoch, indices, pinned_memory)
            stream.synchronize()
            labels, numbers = batch.labels.pin_memory(), batch.indices.pin_memory()
            return replace(batch, labels=labels, indices=numbers)

    return make
