"""The engines `workers` and `pillow`: torch DataLoader worker processes make batches."""

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

from torch.utils.data import DataLoader, Dataset, Sampler

from entry_point.config.config_errors import ConfigError
from entry_point.data.batch import Batch
from entry_point.data.decode.allocation import reused_memory, shared_memory
from entry_point.data.decode.batch_maker import BatchMaker, MakeBatch, Request
from entry_point.data.errors import picklable
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.plan.order import Plan
from entry_point.supervisor.die_with_parent import die_with_parent

_SECONDS_TO_DIE = 5.0


@dataclass(frozen=True)
class _Batches(Dataset[Batch | Exception]):
    """Makes a whole batch per request, or says why it cannot.

    An exception travels like a batch: the DataLoader would put its own traceback before the reason.
    """

    make_batch: MakeBatch

    def __getitem__(self, request: Request) -> Batch | Exception:
        try:
            return self.make_batch(*request)
        except Exception as error:
            return picklable(error)


class _Requests(Sampler[Request]):
    """The requests that the DataLoader sends to its workers; `start` sets where they begin."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._start = (0, 0)

    def start(self, epoch: int, step: int) -> None:
        self._start = (epoch, step)

    def __iter__(self) -> Iterator[Request]:
        epoch, step = self._start
        return ((epoch, indices) for indices in self._plan.batches(epoch, step))


class WorkerEngine:
    """Makes batches in processes that live until `close`; if one dies, `epoch` raises RuntimeError.

    With 0 workers, the training process makes them.
    """

    def __init__(self, make_batch: BatchMaker, plan: Plan, spec: LoaderSpec) -> None:
        self._plan, self._requests = plan, _Requests(plan)
        workers = min(spec.pipeline.worker_count(), plan.steps_per_epoch)
        if workers:
            _check_fork(spec)
        make = partial(make_batch, allocate=shared_memory if workers else reused_memory)
        self._batches: DataLoader[Batch | Exception] | None = DataLoader(
            _Batches(make),
            sampler=self._requests,
            batch_size=None,
            num_workers=workers,
            prefetch_factor=spec.pipeline.prefetch if workers else None,
            persistent_workers=workers > 0,
            pin_memory=spec.device.type == "cuda",
            worker_init_fn=partial(_belong_to_trainer, os.getpid()),
            multiprocessing_context=_context() if workers else None,
        )
        self._reader = ThreadPoolExecutor(1, "shard-reader")
        plan.read_ahead(self._reader, here=workers == 0)
        self._running = _one_epoch(iter(()))
        self._workers: list[BaseProcess] = []
        # Workers ignore SIGTERM, so the interpreter would wait for them forever at exit.
        atexit.register(self._kill_workers)

    def epoch(self, epoch: int, start_step: int) -> Iterator[Batch]:
        assert self._batches is not None, "closed"
        self._running.close()
        self._requests.start(epoch, start_step)
        others = multiprocessing.active_children()
        with _no_collection():
            self._running = _one_epoch(iter(self._batches))
        started = [child for child in multiprocessing.active_children() if child not in others]
        self._workers = started or self._workers
        return self._received(self._running)

    def _received(self, batches: Generator[Batch | Exception, None, None]) -> Iterator[Batch]:
        while (outcome := self._next(batches)) is not None:
            if isinstance(outcome, Exception):
                raise outcome
            yield outcome
        if batches is self._running:
            self._plan.release()

    def _next(self, batches: Iterator[Batch | Exception]) -> Batch | Exception | None:
        try:
            return next(batches, None)
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

    def close(self) -> None:
        self._batches = None  # with its last reference, the DataLoader ends its workers
        self._running.close()
        self._reader.shutdown(cancel_futures=True)
        self._plan.release()
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


def _one_epoch(
    batches: Iterator[Batch | Exception],
) -> Generator[Batch | Exception, None, None]:
    """Batches until closed; the DataLoader itself uses one iterator for all epochs."""
    yield from batches


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


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable garbage collection in this block and in processes forked in it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _belong_to_trainer(trainer: int, _worker: int) -> None:
    """Live as long as the trainer, whatever signals the process group receives.

    The trainer reacts to signals: it ends the step, saves a checkpoint and closes the loader.

    A worker never collects garbage inherited from the trainer. A fork copies only the forking
    thread, so finalizing an object that owns threads (a DALI pipeline, a log writer) deadlocks.
    """
    gc.freeze()
    gc.enable()
    die_with_parent(trainer)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
