"""Items that wait share a batch; an item that is the only one is answered at once."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

logger = logging.getLogger(__name__)


class Worker(Protocol):
    """Computes batches, each worker in its own thread."""

    def warm_up(self) -> None:
        """Called once, before the first batch. What it raises, `Batcher.start` raises."""
        ...

    def __call__(self, items: Sequence[Any], at_work: int, /) -> Sequence[Any]:
        """Returns an answer or an exception for each item; `at_work` busy workers share the
        cores."""
        ...


@dataclass(eq=False)
class _Job:
    item: Any
    may_wait: bool
    arrived: float = field(default_factory=time.monotonic)
    future: Future[Any] = field(default_factory=Future)


class Batcher:
    """A queue, and one thread per worker that answers its items in batches.

    A worker that is free takes what waits, up to `max_batch` items. If that is less, and the oldest
    item was not the only one, the worker waits for more until that item is `max_wait_s` old. The
    first free worker is the one to take it, so that a server with little to do keeps one thread's
    memory in the caches; the others sleep.
    """

    def __init__(
        self,
        *,
        max_batch: int,
        max_wait_s: float,
        on_batch: Callable[[int], None],
    ) -> None:
        self._max_batch, self._max_wait_s = max_batch, max_wait_s
        self._on_batch = on_batch
        self._queue: deque[_Job] = deque()
        self._lock = threading.Lock()
        self._idle: dict[int, threading.Condition] = {}
        self._busy = 0
        self._is_stopping = False
        self._threads: list[threading.Thread] = []

    def start(self, workers: Sequence[Worker]) -> None:
        """Start one thread per worker, and warm each up."""
        for number, worker in enumerate(workers):
            is_warm: Future[None] = Future()
            # A daemon: a model that hangs must not keep the process from ending.
            thread = threading.Thread(
                target=self._work, args=(worker, number, is_warm), name=f"model-{number}",
                daemon=True,
            )  # fmt: skip
            thread.start()
            is_warm.result()
            self._threads.append(thread)

    def stop(self, patience_s: float) -> bool:
        """Answer what waits, then end the threads; returns whether all ended in time."""
        with self._lock:
            self._is_stopping = True
            for idle in self._idle.values():
                idle.notify()
        deadline = time.monotonic() + patience_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    @property
    def at_once(self) -> int:
        """Items that all workers together can compute at the same time."""
        return len(self._threads) * self._max_batch

    @property
    def waiting(self) -> int:
        """Items in the queue that somebody still wants."""
        with self._lock:
            return sum(not job.future.cancelled() for job in self._queue)

    def submit(self, item: Any, *, others_come: bool = False) -> Future[Any]:
        """Queue an item. Cancel the future if nobody wants the answer any more.

        `others_come`: more items are on their way, and could share its batch.
        """
        with self._lock:
            job = _Job(item, may_wait=bool(others_come or self._queue or self._busy))
            self._queue.append(job)
            # In between, an idle worker that knows of the first item already waits for more.
            if len(self._queue) in (1, self._max_batch):
                self._wake_first()
        return job.future

    def _work(self, worker: Worker, number: int, is_warm: Future[None]) -> None:
        try:
            worker.warm_up()
        except BaseException as error:
            is_warm.set_exception(error)
            return
        is_warm.set_result(None)
        awake = threading.Condition(self._lock)
        while picked := self._next_batch(number, awake):
            # The next worker, too, if items wait for it.
            at_work = min(len(self._threads), self._busy + bool(self._queue))
            try:
                answers = worker([job.item for job in picked], at_work)
            except Exception as error:
                logger.exception("a batch of %d failed", len(picked))
                answers = [error] * len(picked)
            self._on_batch(len(picked))
            for job, answer in zip(picked, answers, strict=True):
                if isinstance(answer, Exception):
                    job.future.set_exception(answer)
                else:
                    job.future.set_result(answer)
            with self._lock:
                self._busy -= 1

    def _wake_first(self) -> None:
        if self._idle:
            self._idle[min(self._idle)].notify()

    def _next_batch(self, number: int, awake: threading.Condition) -> list[_Job]:
        """Wait for a batch; empty when the server stops and the queue is empty."""
        with self._lock:
            while True:
                if not self._queue and self._is_stopping:
                    return []
                patience = self._patience()
                if self._queue and patience <= 0:
                    if picked := self._pick():
                        self._busy += 1
                        return picked
                    continue
                self._idle[number] = awake
                takes_next = self._queue and number == min(self._idle)
                awake.wait(patience if takes_next else None)
                del self._idle[number]

    def _patience(self) -> float:
        """Seconds to wait for a larger batch."""
        is_full = len(self._queue) >= self._max_batch
        if not self._queue or not self._queue[0].may_wait or is_full or self._is_stopping:
            return 0.0
        return self._queue[0].arrived + self._max_wait_s - time.monotonic()

    def _pick(self) -> list[_Job]:
        """Take up to `max_batch` items that were not cancelled; from here on, none can be."""
        picked: list[_Job] = []
        while self._queue and len(picked) < self._max_batch:
            job = self._queue.popleft()
            if job.future.set_running_or_notify_cancel():
                picked.append(job)
        if self._queue:
            self._wake_first()
        return picked
