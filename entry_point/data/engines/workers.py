"""The engine `workers`: torch DataLoader worker processes make batches."""

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
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import RawValue

from torch.utils.data import DataLoader, Dataset, Sampler

from entry_point.config.config_errors import ConfigError
from entry_point.data.decode.allocation import reused_memory, shared_memory
from entry_point.data.engines.feed import Feed, MakeBatch, Outcome, Part, Request
from entry_point.data.errors import picklable
from entry_point.data.loader_spec import AHEAD, LoaderSpec
from entry_point.data.patience import hurried
from entry_point.supervisor.ranks import die_with_parent

_SECONDS_TO_DIE = 5.0
_TRAINER_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class _Batches(Dataset[Outcome]):
    """Makes a whole batch per request, or says why it cannot.

    An exception travels like a batch: the DataLoader would put its own traceback before the reason.
    """

    make_batch: MakeBatch

    def __getitem__(self, request: Request) -> Outcome:
        try:
            return self.make_batch(*request)
        except Exception as error:
            return picklable(error)


class _Requests(Sampler[Request]):
    """The requests that the DataLoader sends to its workers, from `part` on."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.part = Part("train", 0)

    def __iter__(self) -> Iterator[Request]:
        return self._feed.requests(self.part)


class WorkerEngine:
    """Makes batches in processes that live until `close`; if one dies, reading on raises
    RuntimeError.

    With 0 workers, the training process makes them.
    """

    def __init__(self, feed: Feed, spec: LoaderSpec) -> None:
        self._feed, self._requests = feed, _Requests(feed)
        workers = min(spec.pipeline.worker_count(), feed.most_steps)
        if workers:
            _check_fork(spec)
        make = partial(feed.make, allocate=shared_memory if workers else reused_memory)
        self._batches: DataLoader[Outcome] | None = DataLoader(
            _Batches(make),
            sampler=self._requests,
            batch_size=None,
            num_workers=workers,
            prefetch_factor=AHEAD if workers else None,
            persistent_workers=workers > 0,
            pin_memory=spec.device.type == "cuda",
            worker_init_fn=partial(_belong_to_trainer, os.getpid()),
            multiprocessing_context=_context() if workers else None,
        )
        self._reader = ThreadPoolExecutor(1, "shard-reader")
        if not workers:
            feed.read_ahead(self._reader)
        self._running = _until_closed(iter(()))
        self._workers: list[BaseProcess] = []
        # Workers ignore SIGTERM, so the interpreter would wait for them forever at exit.
        atexit.register(self._kill_workers)

    def start(self, part: Part) -> Iterator[Outcome]:
        """See Engine."""
        assert self._batches is not None, "closed"
        self._requests.part = part
        others = multiprocessing.active_children()
        # Until a worker ignores them, a signal would end it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _TRAINER_SIGNALS)
        gc.disable()  # `_belong_to_trainer` turns it on
        try:
            self._running = _until_closed(iter(self._batches))
        finally:
            gc.enable()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        started = [child for child in multiprocessing.active_children() if child not in others]
        self._workers = started or self._workers
        return self._received(self._running)

    def _received(self, outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
        while (outcome := self._next(outcomes)) is not None:
            yield outcome

    def _next(self, outcomes: Iterator[Outcome]) -> Outcome | None:
        try:
            return next(outcomes, None)
        except (OSError, EOFError) as error:  # the worker died and its shared memory is gone
            sentinels = {worker.sentinel: worker.pid for worker in self._workers}
            ended = wait(list(sentinels), _SECONDS_TO_DIE)
            if not ended:
                raise
            dead = ", ".join(str(pid) for s, pid in sentinels.items() if s in ended)
            raise RuntimeError(
                f"DataLoader worker (pid {dead}) was killed or exited unexpectedly"
            ) from error
        except Exception as error:
            # The traceback's frames hold the DataLoader's iterator, which keeps workers alive.
            raise error.with_traceback(None)  # noqa: B904 - it is the same error

    def stop(self) -> None:
        """See Engine."""
        self._running.close()
        self._feed.release()

    def close(self) -> None:
        """See Engine."""
        self._batches = None  # with its last reference, the DataLoader ends its workers
        with hurried():
            self._reader.shutdown(cancel_futures=True)
        if not any(worker.is_alive() for worker in self._workers):
            atexit.unregister(self._kill_workers)

    def _kill_workers(self) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler treats a death as a failure
        for worker in self._workers:
            worker.kill()


def _check_fork(spec: LoaderSpec) -> None:
    """Raise ConfigError where a fork of the trainer is unsafe.

    Between hosts, NCCL registers memory with the network device (EFA, InfiniBand). After a fork,
    the first to write to a page gets a copy, while the device keeps the original.
    """
    several_hosts = spec.world_size > int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if several_hosts and spec.device.type == "cuda":
        engine = spec.pipeline.engine
        must = "forks the trainer, which is unsafe with NCCL on several hosts; use pipeline=threads"
        raise ConfigError("pipeline.engine", engine, must)


def _until_closed(outcomes: Iterator[Outcome]) -> Generator[Outcome, None, None]:
    """Outcomes until closed; the DataLoader itself uses one iterator for all."""
    yield from outcomes


class SharedFlag:
    """A multiprocessing.Event without its lock.

    DataLoader workers check an event for each request. If one is killed while it holds the lock,
    the trainer waits for that lock forever.
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


def _belong_to_trainer(trainer: int, _worker: int) -> None:
    """Live as long as the trainer, whatever signals the process group receives.

    The trainer reacts to signals: it ends the step, saves a checkpoint and closes the loader.

    A worker never collects garbage inherited from the trainer. A fork copies only the forking
    thread, so finalizing an object that owns threads (a DALI pipeline, a log writer) deadlocks.
    """
    gc.freeze()
    gc.enable()
    die_with_parent(trainer)
    for number in _TRAINER_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _TRAINER_SIGNALS)
