"""Batches made by threads of one child process, handed over in shared memory.

The trainer asks for the next batch and gets a message of a few hundred bytes: torch passes the file
descriptor of the memory that the operator wrote the pixels into. The pipe tells at once when either
side is gone. (SPDL's `iterate_in_subprocess` keeps the child and its exit code to itself, and
carries only the text of an error.)
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.data.batch import Batch, Damage, allocate_in_shared_memory
from entry_point.data.decode.batch_maker import BatchMaker, DamageCount
from entry_point.data.engines.ahead import map_ahead
from entry_point.data.engines.threads import BatchThreads
from entry_point.data.errors import DataError
from entry_point.data.plan.order import Plan
from entry_point.data.spans import Span
from entry_point.supervisor.die_with_parent import die_with_parent

_SECONDS_TO_DIE = 10.0
_FOR_THE_TRAINER = (signal.SIGINT, signal.SIGTERM)
Fields = tuple[Tensor, NDArray[np.int64], NDArray[np.int64], tuple[Damage, ...], tuple[Span, ...]]
Message = Fields | Exception | None
"""The fields of a Batch, why there is none, or None after the last."""


class ChildLoader:
    """A Loader whose threads are in a process of their own, from the first epoch until `close`.

    If the process dies, that is a RuntimeError that names it and the signal.
    """

    def __init__(
        self,
        make_batch: BatchMaker,
        plan: Plan,
        data: DataConfig,
        pipeline: PipelineConfig,
        device: torch.device,
    ) -> None:
        self.steps_per_epoch = plan.steps_per_epoch
        self._data, self._samples, self._device = data, plan.samples_per_epoch, device
        self._threads = BatchThreads(make_batch, plan, pipeline.worker_count(), pipeline.prefetch)
        self._child: _Child | None = None
        self._receiver = ThreadPoolExecutor(1, "batch-receiver")
        self._running: Iterator[Batch | Exception | None] = iter(())
        self._closed = False

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """The epoch's batches from `start_step` on; the steps before it cost nothing.

        It ends whichever epoch was running.
        """
        if self._closed:
            raise RuntimeError("the loader is closed")
        if self._child is None:
            self._child = _Child(self._threads)
        self._leave_epoch()
        outcomes = self._received(self._child, epoch, start_step)
        # The receiving thread alone advances `outcomes`, one epoch's after the other's.
        self._running = map_ahead(self._receiver, lambda _: next(outcomes, None), repeat(None), 2)
        return self._checked(self._running, epoch)

    def close(self) -> None:
        """End the child."""
        self._closed = True
        self._leave_epoch()
        if self._child is not None:
            self._child.end()  # before the receiver, who may be waiting for it
        self._receiver.shutdown(cancel_futures=True)

    def _received(self, child: _Child, epoch: int, start_step: int) -> Iterator[Batch | Exception]:
        try:
            child.connection.send((epoch, start_step))
            while True:
                child.connection.send(None)
                message: Message = child.connection.recv()
                if message is None:
                    return
                yield message if isinstance(message, Exception) else self._batch(*message)
        except (OSError, EOFError) as error:
            raise child.death() or error from error

    def _batch(
        self,
        images: Tensor,
        labels: NDArray[np.int64],
        indices: NDArray[np.int64],
        damage: tuple[Damage, ...],
        spans: tuple[Span, ...],
    ) -> Batch:
        batch = Batch(images, torch.from_numpy(labels), torch.from_numpy(indices), damage, spans)
        if self._device.type != "cuda":
            return batch
        with torch.cuda.device(self._device):  # each thread begins on GPU 0
            return batch.pin_memory()

    def _checked(self, outcomes: Iterator[Batch | Exception | None], epoch: int) -> Iterator[Batch]:
        count = DamageCount(self._data, epoch, self._samples)
        for outcome in outcomes:
            if outcome is None:
                break
            if isinstance(outcome, Exception):
                raise outcome
            count.add(outcome)
            yield outcome

    def _leave_epoch(self) -> None:
        running, self._running = self._running, iter(())
        if hasattr(running, "close"):
            running.close()


class _Child:
    """The process and the way to it."""

    def __init__(self, threads: BatchThreads) -> None:
        # A fork would copy locks that the trainer's threads hold.
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, threads, os.getpid()))
        _start_deaf(self._process)
        theirs.close()
        self._hang_up = Finalize(self, self.connection.close, exitpriority=10)

    def end(self) -> None:
        """At once, whatever it waits for: it has nothing to lose, and what it shared is freed."""
        self._process.kill()
        self._process.join()
        self._hang_up()

    def death(self) -> RuntimeError | None:
        """What ended the process, if it has ended."""
        self._process.join(_SECONDS_TO_DIE)
        code = self._process.exitcode
        if code is None:
            return None
        name = f"the process that makes batches (pid {self._process.pid})"
        if code >= 0:
            return RuntimeError(f"{name} exited with {code}")
        hint = " (is the machine out of memory?)" if -code == signal.SIGKILL else ""
        return RuntimeError(f"{name} was killed by {signal.Signals(-code).name}{hint}")


def _start_deaf(process: multiprocessing.process.BaseProcess) -> None:
    """Start a process that never gets the signals that ask the trainer to end."""
    resource_tracker.ensure_running()  # starting it would unblock the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_TRAINER)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(trainer: Connection, threads: BatchThreads, trainer_pid: int) -> None:
    """In the child: begin at (epoch, step), and a message for each None, till the trainer ends."""
    die_with_parent(trainer_pid)
    torch.set_num_threads(1)  # threads share the batches, not a batch
    allocate_in_shared_memory()
    outcomes: Iterator[Batch | Exception] = iter(())
    try:
        while True:
            start: tuple[int, int] | None = trainer.recv()
            if start is None:
                trainer.send(_message(next(outcomes, None)))
            else:
                outcomes = threads.outcomes(*start)
    except (EOFError, OSError):  # it closed the loader, or died
        threads.close()


def _message(outcome: Batch | Exception | None) -> Message:
    if outcome is None or isinstance(outcome, DataError):
        return outcome
    if isinstance(outcome, Batch):
        labels, indices = outcome.labels.numpy(), outcome.indices.numpy()
        return outcome.images, labels, indices, outcome.damage, outcome.spans
    # Whatever it was, it arrives: not every exception survives a pickle.
    return RuntimeError("".join(traceback.format_exception(outcome)).rstrip())
