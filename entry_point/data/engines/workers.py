"""The engine `workers`: worker processes of torch's DataLoader make batches."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial
from threading import Thread

from torch.utils.data import DataLoader, Dataset

from entry_point.config.config_errors import ConfigError
from entry_point.data.decode.allocation import Allocate, reused_memory, shared_memory
from entry_point.data.engines.batch_maker import BatchMaker, Outcome, Request
from entry_point.data.errors import picklable
from entry_point.data.loader_spec import AHEAD, LoaderSpec

_ON_LINUX = sys.platform == "linux"
_POLL_S = 5.0
"""Seconds between a worker's checks that the trainer is alive, as in torch."""


@dataclass(frozen=True)
class _Batches(Dataset[Outcome]):
    """Returns a whole batch for each request, or the exception.

    Exceptions are values, because the DataLoader would put its own traceback before the reason.
    """

    maker: BatchMaker
    allocate: Allocate

    def __getitem__(self, request: Request) -> Outcome:
        try:
            return self.maker(*request, allocate=self.allocate)
        except Exception as error:
            return picklable(error)


class WorkerEngine:
    """Makes batches in processes that live until `stop`; if one dies, torch raises RuntimeError.

    With 0 workers, the training process makes the batches.
    """

    def __init__(self, maker: BatchMaker, spec: LoaderSpec, steps_per_epoch: int) -> None:
        self._spec = spec
        self._workers = min(spec.pipeline.worker_count(), steps_per_epoch)
        # With several hosts, NCCL registers memory with the network device (EFA, InfiniBand). After
        # a fork, the first process to write to a page gets a copy; the device keeps the original.
        several_hosts = spec.world_size > int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        if self._workers and several_hosts and spec.device.type == "cuda":
            message = "forks the trainer, which is unsafe with NCCL on several hosts"
            raise ConfigError("pipeline.engine", "workers", f"{message}; use pipeline=threads")
        self._batches = _Batches(maker, shared_memory if self._workers else reused_memory)
        self._running = _outcomes(iter(()))

    def start(self, requests: Iterator[Request]) -> Iterator[Outcome]:
        """See Engine."""
        batches = DataLoader(
            self._batches,
            sampler=requests,
            batch_size=None,
            num_workers=self._workers,
            prefetch_factor=AHEAD if self._workers else None,
            pin_memory=self._spec.device.type == "cuda",
            # Without "fork", Python 3.14 pickles the source, which may hold an open file, and each
            # worker imports torch.
            multiprocessing_context="fork" if self._workers and _ON_LINUX else None,
            worker_init_fn=partial(_set_up_worker, os.getpid()),
        )
        # A worker that collected the trainer's garbage would finalize objects of threads that do
        # not exist after the fork, and crash, as with DALI's pipelines.
        gc.freeze()
        try:
            self._running = _outcomes(iter(batches))
        finally:
            gc.unfreeze()
        return self._running

    def stop(self) -> None:
        """See Engine."""
        self._running.close()


def _set_up_worker(trainer: int, _worker: int) -> None:
    """Make a worker ignore SIGTERM unless the trainer sent it, and print no tracebacks.

    systemd, Slurm and `pkill` send SIGTERM to all processes, but the trainer needs its workers
    until it has written its checkpoint. If the trainer has ended, for example after another worker
    died, multiprocessing's thread that sends a batch's memory would print a traceback. Only this
    thread calls `sys.excepthook`.
    """
    sys.excepthook = lambda *_: None
    if _ON_LINUX:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        Thread(target=_end_when_terminated_by, args=(trainer,), daemon=True).start()


def _end_when_terminated_by(trainer: int) -> None:
    """End this process on the trainer's SIGTERM, or once the trainer is gone, even if it ended
    before this process started; torch's own check misses that."""
    while os.getppid() == trainer:
        received = signal.sigtimedwait({signal.SIGTERM}, _POLL_S)
        if received is not None and received.si_pid == trainer:
            break
    os._exit(0)


def _outcomes(batches: Iterator[Outcome]) -> Generator[Outcome, None, None]:
    """Yields the outcomes until closed. Holds the last reference to the DataLoader's iterator,
    which ends its workers when released."""
    try:
        yield from batches
    except (OSError, EOFError) as error:  # the worker died, and its shared memory with it
        # Wait for torch's handler of SIGCHLD to raise the reason here, rather than in a destructor.
        time.sleep(5)
        raise RuntimeError("DataLoader worker exited before its batch was received") from error
