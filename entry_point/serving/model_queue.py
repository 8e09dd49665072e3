"""Photos that wait share a batch; the photo of the only request is computed at once."""

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
"""How long a photo may wait for others to share its batch, unless its request is the only one."""

Compute = Callable[[Sequence[Photo]], Sequence[Any]]
"""Returns an answer or an exception for each photo."""


@dataclass(eq=False)
class _Job:
    photo: Photo
    arrived: float = field(default_factory=time.monotonic)
    future: Future[Any] = field(default_factory=Future)


class ModelQueue:
    """A queue, and a thread per copy of the model, which computes up to `max_batch` photos at once.

    One free thread at a time waits for photos, the others for their turn. `at_work` returns how
    many requests are being answered: photos of these may come. The copies share `cores`, or have a
    GPU each (`on_gpus`).
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
        """Start a thread per copy, and have each compute the sample, alone and in a full batch."""
        for compute in copies:
            is_warm: Future[None] = Future()
            arguments = compute, sample, is_warm
            # A daemon: a model that hangs must not keep the process from ending.
            threading.Thread(target=self._work, args=arguments, daemon=True).start()
            is_warm.result()

    def submit(self, photo: Photo) -> Future[Any]:
        """Returns the answer, later. Cancel it if nobody wants it any more."""
        job = _Job(photo)
        self._waiting.put(job)
        return job.future

    def _work(self, compute: Compute, sample: Photo, is_warm: Future[None]) -> None:
        """Be the thread of a copy."""
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
                    # Keep the turn: the only client's next photo finds this thread's caches, and
                    # all cores are at work anyway.
                    self._answer(compute, jobs)
                    continue
            if jobs:
                self._answer(compute, jobs)

    def _answer(self, compute: Compute, jobs: Sequence[_Job]) -> None:
        """Compute a batch, and answer each of its photos."""
        with self._counting:
            self._busy += 1
            busy = self._busy + (not self._waiting.empty())
        # Busy threads share the cores; this is of this thread's calls, and takes under 1 us.
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
        """Wait for photos; returns those that somebody still wants."""
        jobs = [self._waiting.get()]
        patience = jobs[0].arrived + MAX_WAIT_S - time.monotonic()
        waiting = 1 + self._waiting.qsize()
        if waiting < min(self._max_batch, self._at_work()) and patience > 0:
            time.sleep(patience)
        with suppress(queue.Empty):
            while len(jobs) < self._max_batch:
                jobs.append(self._waiting.get_nowait())
        return [job for job in jobs if job.future.set_running_or_notify_cancel()]
