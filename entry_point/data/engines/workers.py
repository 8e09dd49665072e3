"""The engine `workers`: torch DataLoader worker processes make batches."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from torch.utils.data import DataLoader, Dataset, Sampler

from entry_point.config.config_errors import ConfigError
from entry_point.data.decode.allocation import reused_memory, shared_memory
from entry_point.data.engines.feed import Feed, MakeBatch, Outcome, Part, Request
from entry_point.data.errors import picklable
from entry_point.data.loader_spec import AHEAD, LoaderSpec
from entry_point.data.patience import hurried


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
    """Makes batches in processes that live until `close`; if one dies, torch raises RuntimeError.

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
        )
        self._reader = ThreadPoolExecutor(1, "shard-reader")
        if not workers:
            feed.read_ahead(self._reader)
        self._running = _outcomes(iter(()))

    def start(self, part: Part) -> Iterator[Outcome]:
        """See Engine."""
        assert self._batches is not None, "closed"
        self._requests.part = part
        self._running = _outcomes(iter(self._batches))
        return self._running

    def stop(self) -> None:
        """See Engine."""
        self._running.close()
        self._feed.release()

    def close(self) -> None:
        """See Engine."""
        self._batches = None  # with its last reference, the DataLoader ends its workers
        with hurried():
            self._reader.shutdown(cancel_futures=True)


def _outcomes(batches: Iterator[Outcome]) -> Generator[Outcome, None, None]:
    """The outcomes until closed; the DataLoader itself uses one iterator for all."""
    try:
        yield from batches
    except (OSError, EOFError) as error:  # the worker's shared memory went with it
        raise RuntimeError("DataLoader worker exited before its batch was received") from error


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
