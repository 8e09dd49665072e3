"""Batches made in torch DataLoader worker processes."""

from __future__ import annotations

import atexit
import copy
import ctypes
import gc
import multiprocessing
import os
import signal
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import RawValue

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, Sampler

from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.data.batch import Batch, allocate_in_shared_memory
from entry_point.data.decode.batch_maker import BatchMaker, DamageCount
from entry_point.data.plan.order import Plan
from entry_point.supervisor.die_with_parent import die_with_parent

_SECONDS_TO_DIE = 5.0
Request = tuple[int, NDArray[np.int64]]
"""Epoch and sample indices of one batch."""


@dataclass(frozen=True)
class _Batches(Dataset[Batch]):
    """Makes a whole batch per request, in whichever process asks."""

    make_batch: BatchMaker

    def __getitem__(self, request: Request) -> Batch:
        return self.make_batch(*request)


class _Requests(Sampler[Request]):
    """What the DataLoader asks its workers for; `start` chooses where the next pass begins."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._start = (0, 0)

    def start(self, epoch: int, step: int) -> None:
        self._start = (epoch, step)

    def __iter__(self) -> Iterator[Request]:
        epoch, step = self._start
        return ((epoch, indices) for indices in self._plan.batches(epoch, step))


class WorkerLoader:
    """A Loader whose worker processes live until `close`; one that dies is a RuntimeError."""

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
        self._plan, self._requests = plan, _Requests(plan)
        workers = min(pipeline.worker_count(), plan.steps_per_epoch)
        # The trainer answers signals: it ends the step, keeps a checkpoint and closes the loader.
        self._batches: DataLoader[Batch] | None = DataLoader(
            _Batches(make_batch),
            sampler=self._requests,
            batch_size=None,
            num_workers=workers,
            prefetch_factor=pipeline.prefetch if workers else None,
            persistent_workers=workers > 0,
            pin_memory=device.type == "cuda",
            worker_init_fn=partial(_belong_to_trainer, os.getpid()),
            multiprocessing_context=_context() if workers else None,
        )
        self._reader = ThreadPoolExecutor(1, "shard-reader")
        plan.read_ahead(self._reader, here=workers == 0)
        self._running = _one_epoch(iter(()))
        self._workers: list[BaseProcess] = []
        # Without it, leaving the program would wait for ever for workers that ignore SIGTERM.
        atexit.register(self._kill_workers)

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """The epoch's batches from `start_step` on; the steps before it cost nothing.

        It ends whichever epoch was running.
        """
        if self._batches is None:
            raise RuntimeError("the loader is closed")
        self._running.close()
        self._requests.start(epoch, start_step)
        others = multiprocessing.active_children()
        with _no_collection():
            self._running = _one_epoch(iter(self._batches))
        started = [child for child in multiprocessing.active_children() if child not in others]
        self._workers = started or self._workers
        return self._checked(self._running, epoch)

    def _checked(self, batches: Generator[Batch, None, None], epoch: int) -> Iterator[Batch]:
        count = DamageCount(self._data, epoch, self._samples)
        while (batch := self._next(batches)) is not None:
            count.add(batch)
            yield batch
        if batches is self._running:
            self._plan.release()

    def _next(self, batches: Iterator[Batch]) -> Batch | None:
        try:
            return next(batches, None)
        except (OSError, EOFError) as error:  # a batch whose memory went with its worker
            sentinels = {worker.sentinel: worker.pid for worker in self._workers}
            ended = wait(list(sentinels), _SECONDS_TO_DIE)
            if not ended:
                raise
            dead = ", ".join(str(pid) for s, pid in sentinels.items() if s in ended)
            raise RuntimeError(
                f"DataLoader worker (pid {dead}) was killed or exited unexpectedly"
            ) from error
        except Exception as error:
            # The frames it comes from hold the DataLoader's iterator, and so the workers.
            raise error.with_traceback(None)  # noqa: B904 - it is the same error

    def close(self) -> None:
        """End the workers: the DataLoader does when its last reference goes."""
        self._batches = None
        self._running.close()
        self._reader.shutdown(cancel_futures=True)
        self._plan.release()
        if not any(worker.is_alive() for worker in self._workers):
            atexit.unregister(self._kill_workers)

    def _kill_workers(self) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler takes deaths for failures
        for worker in self._workers:
            worker.kill()


def _one_epoch(batches: Iterator[Batch]) -> Generator[Batch, None, None]:
    """The batches, until it is closed: the DataLoader's own iterator is one for all epochs."""
    yield from batches


class SharedFlag:
    """A multiprocessing.Event without its lock.

    DataLoader workers look at an event with each request: one that is killed while it holds the
    lock would leave the trainer waiting for it for ever.
    """

    def __init__(self) -> None:
        self._flag = RawValue(ctypes.c_bool, False)

    def is_set(self) -> bool:
        return bool(self._flag.value)

    def set(self) -> None:
        self._flag.value = True


def _context() -> BaseContext:
    context = copy.copy(multiprocessing.get_context())
    context.Event = SharedFlag  # type: ignore[method-assign, assignment]
    return context


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage is collected in here, nor in a process forked in here."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _belong_to_trainer(trainer: int, _worker: int) -> None:
    """Live as long as the trainer does, whatever signals the process group gets.

    The trainer's garbage stays the trainer's: to end what owns threads (a DALI pipeline, a writer
    of logs) here, where only the forking thread goes on, is to wait for ever.
    """
    gc.freeze()
    gc.enable()
    die_with_parent(trainer)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    allocate_in_shared_memory()
