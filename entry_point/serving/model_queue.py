"""Batches the photos of concurrent requests; a request that is alone does not wait for others."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from entry_point.serving.images import Photo

logger = logging.getLogger(__name__)

MAX_WAIT_S = 0.002
"""Longest wait of a photo for others to fill its batch, unless its request is alone."""

Compute = Callable[[Sequence[Photo]], Sequence[Any]]
"""Returns an answer or an exception for each photo."""


@dataclass(eq=False)
class _Job:
    photo: Photo
    arrived: float = field(default_factory=time.monotonic)
    future: Future[Any] = field(default_factory=Future)


class ModelQueue:
    """A queue of photos, and a thread per copy of the model that computes batches of them.

    One idle thread at a time waits for photos, up to `max_batch`; the others wait for their turn.
    `at_work` returns the number of requests being answered, each of which may send more photos.
    The copies share `cores`, or have a GPU each (`on_gpus`).
    """

    def __init__(
        self, max_batch: int, cores: int, at_work: Callable[[], int], *, on_gpus: bool = False
    ) -> None:
        self._max_batch, self._cores, self._at_work = max_batch, cores, at_work
        self._on_gpus = on_gpus
        self._waiting: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._turn, self._counting = threading.Lock(), threading.Lock()
        self._busy = 0

    def start(self, copies: Sequence[Compute], sample: Photo) -> None:
        """Start a thread per copy, and warm each up with the sample, alone and in a full batch."""
        for compute in copies:
            is_warm: Future[None] = Future()
            arguments = compute, sample, is_warm
            # A daemon thread, so that a model that hangs does not keep the process alive.
            threading.Thread(target=self._work, args=arguments, daemon=True).start()
            is_warm.result()

    def submit(self, photo: Photo) -> Future[Any]:
        """Returns a future of the answer. Cancel it if the client has gone."""
        job = _Job(photo)
        self._waiting.put(job)
        return job.future

    def _work(self, compute: Compute, sample: Photo, is_warm: Future[None]) -> None:
        """Warm a copy up, then compute batch after batch: the thread's function."""
        try:
            for count in (1, self._max_batch, 1):
                compute([sample] * count)
        except BaseException as error:
            is_warm.set_exception(error)
            return
        is_warm.set_result(None)
        while True:
            with self._turn:
                jobs = self._next_batch()
                if jobs and self._at_work() <= 1 and not self._on_gpus:
                    # Keep the turn: the only client's next photo then finds warm caches, and the
                    # other threads have no free core anyway.
                    self._answer(compute, jobs)
                    continue
            if jobs:
                self._answer(compute, jobs)

    def _answer(self, compute: Compute, jobs: Sequence[_Job]) -> None:
        """Compute a batch, and complete the future of each of its photos."""
        with self._counting:
            self._busy += 1
            busy = self._busy + (not self._waiting.empty())
        # Divides the cores among busy threads: the limit is per thread, and takes 1 us to set.
        torch.set_num_threads(max(1, self._cores // busy))
        try:
            answers = compute([job.photo for job in jobs])
        except Exception as error:
            logger.exception("a batch of %d failed", len(jobs))
            answers = [error] * len(jobs)
        with self._counting:
            self._busy -= 1
        for job, answer in zip(jobs, answers, strict=True):
            if isinstance(answer, Exception):
                job.future.set_exception(answer)
            else:
                job.future.set_result(answer)

    def _next_batch(self) -> list[_Job]:
        """Wait for photos; returns the jobs that were not cancelled meanwhile."""
        jobs = [self._waiting.get()]
        patience = jobs[0].arrived + MAX_WAIT_S - time.monotonic()
        waiting = 1 + self._waiting.qsize()
        if waiting < min(self._max_batch, self._at_work()) and patience > 0:
            time.sleep(patience)
        with suppress(queue.Empty):
            while len(jobs) < self._max_batch:
                jobs.append(self._waiting.get_nowait())
        return [job for job in jobs if job.future.set_running_or_notify_cancel()]
