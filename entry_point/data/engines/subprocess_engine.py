"""The engine `subprocess`: threads of one child process make batches in shared memory.

The trainer asks for the next batch and receives a message of a few hundred bytes: torch passes the
file descriptor of the memory that holds the pixels. Both sides see at once when the other has
closed the pipe. (SPDL's `iterate_in_subprocess` hides the child and its exit code, and passes on
only the text of an error.)
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import repeat, takewhile
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from entry_point.data.batch import Batch, Damage
from entry_point.data.decode.allocation import shared_memory
from entry_point.data.engines.ahead import map_ahead
from entry_point.data.engines.feed import Feed, Outcome, PartReader
from entry_point.data.engines.threads import BatchThreads
from entry_point.data.errors import picklable
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.plan.schedule import After, Part
from entry_point.data.spans import Span
from entry_point.supervisor.die_with_parent import die_with_parent

# A fork would copy locks that the trainer's threads hold.
_CONTEXT = multiprocessing.get_context("spawn")
_SECONDS_TO_DIE = 10.0
_TRAINER_SIGNALS = (signal.SIGINT, signal.SIGTERM)
Fields = tuple[
    Tensor,
    NDArray[Any],
    NDArray[np.int64],
    tuple[Damage, ...],
    tuple[Span, ...],
    int,
]
Message = Fields | Exception | None
"""The fields of a Batch, the exception that prevented it, or None after the last batch."""


class SubprocessEngine:
    """Makes batches in a child process that lives from the first part until `close`.

    If the child dies, reading on raises a RuntimeError that names its pid and the signal.
    """

    def __init__(self, feed: Feed, spec: LoaderSpec) -> None:
        self._device = spec.device
        make, workers = partial(feed.make, allocate=shared_memory), spec.pipeline.worker_count()
        self._threads = BatchThreads(feed, make, workers, spec.pipeline.prefetch)
        self._child: _Child | None = None
        self._receiver = ThreadPoolExecutor(1, "batch-receiver")
        self._running: Iterator[Outcome | None] = iter(())
        self._parts = PartReader(feed, self._start, self._stop)

    def batches(self, part: Part) -> Iterator[Batch]:
        return _batches(self._parts.read(part))

    def close(self) -> None:
        self._parts.stop()
        if self._child is not None:
            self._child.end()  # before the receiver, which may be waiting for it
        self._receiver.shutdown(cancel_futures=True)

    def _start(self, part: Part) -> Iterator[Outcome]:
        if self._child is None:
            self._child = _Child(self._threads)
        outcomes = self._received(self._child, part)
        # Only the receiving thread advances `outcomes`, one start after the other.
        self._running = map_ahead(self._receiver, lambda _: next(outcomes, None), repeat(None), 2)
        return takewhile(lambda outcome: outcome is not None, self._running)  # type: ignore[arg-type]

    def _stop(self) -> None:
        running, self._running = self._running, iter(())
        if hasattr(running, "close"):
            running.close()

    def _received(self, child: _Child, part: Part) -> Iterator[Outcome]:
        try:
            child.connection.send(part)
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
        labels: NDArray[Any],
        indices: NDArray[np.int64],
        damage: tuple[Damage, ...],
        spans: tuple[Span, ...],
        stale_indexes: int,
    ) -> Batch:
        numbers = torch.from_numpy(labels), torch.from_numpy(indices)
        batch = Batch(images, *numbers, damage, spans, stale_indexes)
        if self._device.type != "cuda":
            return batch
        with torch.cuda.device(self._device):  # a new thread uses GPU 0
            return batch.pin_memory()


def _batches(outcomes: Iterator[Outcome]) -> Iterator[Batch]:
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
        yield outcome


class _Child:
    """The child process and the trainer's end of its pipe."""

    def __init__(self, threads: BatchThreads) -> None:
        self.connection, child_end = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(child_end, threads, os.getpid()))
        _start_without_signals(self._process)
        child_end.close()
        self._disconnect = Finalize(self, self.connection.close, exitpriority=10)

    def end(self) -> None:
        """Kill the child, whatever it waits for; it has nothing to save."""
        self._process.kill()
        self._process.join()
        self._disconnect()

    def death(self) -> RuntimeError | None:
        """Why the child ended; None if it still runs."""
        self._process.join(_SECONDS_TO_DIE)
        code = self._process.exitcode
        if code is None:
            return None
        name = f"the process that makes batches (pid {self._process.pid})"
        if code >= 0:
            return RuntimeError(f"{name} exited with {code}")
        hint = " (is the machine out of memory?)" if -code == signal.SIGKILL else ""
        return RuntimeError(f"{name} was killed by {signal.Signals(-code).name}{hint}")


def _start_without_signals(process: multiprocessing.process.BaseProcess) -> None:
    """Start a process that never receives the signals that ask the trainer to stop."""
    resource_tracker.ensure_running()  # starting it later would unblock the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _TRAINER_SIGNALS)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(trainer: Connection, threads: BatchThreads, trainer_pid: int) -> None:
    """In the child: a part starts it and what comes after it; None asks for the next message."""
    die_with_parent(trainer_pid)
    torch.set_num_threads(1)  # each thread makes whole batches
    parts = PartReader(threads.feed, threads.start, threads.stop)
    outcomes: Iterator[Outcome] = iter(())
    try:
        while True:
            part: Part | None = trainer.recv()
            if part is None:
                trainer.send(_message(next(outcomes, None)))
            else:
                parts.stop()
                outcomes = _one_after_another(parts, threads.feed.after, part)
    except (EOFError, OSError):  # the trainer closed the loader, or died
        threads.close()


def _one_after_another(parts: PartReader, after: After, part: Part | None) -> Iterator[Outcome]:
    while part is not None:
        yield from parts.read(part)
        part = after(part)


def _message(outcome: Outcome | None) -> Message:
    if isinstance(outcome, Exception):
        return picklable(outcome)
    if outcome is None:
        return None
    labels, indices = outcome.labels.numpy(), outcome.indices.numpy()
    damage, spans, stale = outcome.damage, outcome.spans, outcome.stale_indexes
    return outcome.images, labels, indices, damage, spans, stale
