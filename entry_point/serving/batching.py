"""Requests that wait share a batch; a request that finds the server idle is answered at once."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, Protocol

from entry_point.inference import RequestError

logger = logging.getLogger(__name__)


class Worker(Protocol):
    """What computes batches, in a thread of its own."""

    def warm_up(self) -> None:
        """Called once, before the first batch. What it raises, `Batcher.start` raises."""
        ...

    def __call__(self, items: Sequence[Any], at_work: int, /) -> Sequence[Any]:
        """An answer or an exception for each item; `at_work` busy workers share the cores."""
        ...


@dataclass(eq=False)
class _Job:
    """The items of one request. Large requests are answered in several batches."""

    items: Sequence[Any]
    may_wait: bool
    arrived: float = field(default_factory=time.monotonic)
    future: Future[list[Any]] = field(default_factory=Future)
    answers: dict[int, Any] = field(default_factory=dict)
    taken: int = 0

    def take(self, most: int) -> list[tuple[_Job, int]]:
        first, self.taken = self.taken, min(len(self.items), self.taken + most)
        return [(self, position) for position in range(first, self.taken)]

    def answer(self, position: int, answer: Any) -> None:
        self.answers[position] = answer
        if len(self.answers) < len(self.items):
            return
        try:
            self.future.set_result([self.answers[i] for i in range(len(self.items))])
        except InvalidStateError:
            pass  # the client has gone


class Batcher:
    """A bounded queue, and one thread per worker that answers its requests in batches.

    A worker that is free takes what waits, up to `max_batch` items. If that is less, and the oldest
    request found the server busy, the worker waits for more until that request is `max_wait_s` old.
    The first free worker is the one to take it, so that a server with little to do keeps one
    thread's memory in the caches.
    """

    def __init__(
        self,
        *,
        max_batch: int,
        max_wait_s: float,
        max_queue: int,
        on_batch: Callable[[int], None],
    ) -> None:
        self._max_batch, self._max_wait_s, self._max_queue = max_batch, max_wait_s, max_queue
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
    def waiting(self) -> int:
        """Requests in the queue."""
        return sum(not job.future.cancelled() for job in list(self._queue))

    def submit(self, items: Sequence[Any]) -> Future[list[Any]]:
        """Queue the items of one request; returns the answer or the exception of each.

        Cancel the future if nobody wants the answer any more. Raises RequestError (503) if the
        queue is full.
        """
        with self._lock:
            self._drop_cancelled()
            if len(self._queue) >= self._max_queue:
                raise RequestError(
                    503, f"the queue is full: {self._max_queue} requests wait; try again later"
                )
            job = _Job(items, may_wait=bool(self._queue or self._busy))
            self._queue.append(job)
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
            try:
                items = [job.items[position] for job, position in picked]
                answers = worker(items, self._at_work())
            except Exception as error:
                logger.exception("a batch of %d failed", len(picked))
                answers = [error] * len(picked)
            self._on_batch(len(picked))
            for (job, position), answer in zip(picked, answers, strict=True):
                job.answer(position, answer)
            with self._lock:
                self._busy -= 1

    def _at_work(self) -> int:
        """The number of busy workers, and the next one if requests wait for it."""
        return min(len(self._threads), self._busy + bool(self._queue))

    def _wake_first(self) -> None:
        if self._idle:
            self._idle[min(self._idle)].notify()

    def _next_batch(self, number: int, awake: threading.Condition) -> list[tuple[_Job, int]]:
        """Wait for a batch; empty when the server stops and the queue is empty."""
        with self._lock:
            while True:
                self._drop_cancelled()
                if not self._queue and self._is_stopping:
                    return []
                patience = self._patience()
                if self._queue and patience <= 0:
                    self._busy += 1
                    return self._pick()
                self._idle[number] = awake
                awake.wait(patience if self._queue else None)
                del self._idle[number]

    def _patience(self) -> float:
        """Seconds to wait for a larger batch."""
        items = sum(len(job.items) - job.taken for job in self._queue)
        if not self._queue or not self._queue[0].may_wait or items >= self._max_batch:
            return 0.0
        return self._queue[0].arrived + self._max_wait_s - time.monotonic()

    def _pick(self) -> list[tuple[_Job, int]]:
        picked: list[tuple[_Job, int]] = []
        while self._queue and len(picked) < self._max_batch:
            job = self._queue.popleft()
            picked += job.take(self._max_batch - len(picked))
            if job.taken < len(job.items):
                self._queue.append(job)  # behind the others, which it must not hold up
        if self._queue:
            self._wake_first()
        return picked

    def _drop_cancelled(self) -> None:
        if any(job.future.cancelled() for job in self._queue):
            self._queue = deque(job for job in self._queue if not job.future.cancelled())
