"""The engine `threads`: how it ends while batches are in progress."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from entry_point.data.batch import Batch
from entry_point.data.engines import threads
from entry_point.data.errors import DataError
from tests.entry_point.data.engines.every_engine import loader_by, maker_of

SLOW_SECONDS = 8.0  # SPDL waits 6 s for its threads


@dataclass(frozen=True)
class Numbers:
    """A plan of one sample per step; in place of the last step it may raise."""

    steps_per_epoch: int = 100
    samples_per_epoch: int = 100
    breaks: bool = False

    def batches(self, epoch: int, start_step: int = 0) -> Iterator[NDArray[np.int64]]:
        for step in range(start_step, self.steps_per_epoch - self.breaks):
            yield np.array([step])
        if self.breaks:
            raise DataError(f"no plan for epoch {epoch}")

    def read_ahead(self, reader: ThreadPoolExecutor) -> None:
        pass

    def release(self) -> None:
        pass


def _batch(indices: NDArray[np.int64]) -> Batch:
    return Batch(torch.zeros(1), torch.zeros(1), torch.from_numpy(indices))


def test_close_waits_for_a_batch_however_long_it_takes() -> None:
    made = []

    def make(_epoch: int, indices: NDArray[np.int64]) -> Batch:
        if indices[0] > 0:
            time.sleep(SLOW_SECONDS)
            made.append(int(indices[0]))
        return _batch(indices)

    loader = loader_by(make, Numbers())
    next(loader.epoch(0))
    time.sleep(0.2)
    before = threading.active_count()
    loader.close()
    assert made and threading.active_count() < before


def test_an_error_is_raised_unchanged_while_another_batch_is_in_progress() -> None:
    others = threading.Event()

    def make(_epoch: int, indices: NDArray[np.int64]) -> Batch:
        if indices[0] == 0:
            others.wait()
            raise DataError("a.jpg: damaged")
        others.set()
        time.sleep(SLOW_SECONDS)
        return _batch(indices)

    loader = loader_by(make, Numbers())
    with pytest.raises(DataError, match=r"a\.jpg: damaged"):
        list(loader.epoch(0))
    loader.close()


def test_an_error_of_the_plan_is_raised_unchanged_or_dropped_with_its_epoch() -> None:
    loader = loader_by(lambda _, indices: _batch(indices), Numbers(3, breaks=True))
    with pytest.raises(DataError, match="no plan for epoch 5"):
        list(loader.epoch(5))
    next(loader.epoch(6))
    time.sleep(0.5)  # until the plan is ahead and has raised
    loader.close()


@pytest.mark.parametrize(("engine", "streams"), [("threads", 0), ("dali", 1)])
def test_threads_work_on_the_gpu_of_their_rank_from_first_to_last(
    engine: str, streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that ends outside its device's context makes GPU 0 the current one."""
    opened: list[object] = []
    ended: list[object] = []
    second = torch.device("cuda", 1)

    @contextmanager
    def context(what: object) -> Iterator[None]:
        opened.append(what)
        yield
        ended.append(opened.pop())

    class Stream:
        def __init__(self, device: torch.device) -> None:
            assert device == second

        def synchronize(self) -> None:
            pass

    for name, stand_in in (("device", context), ("stream", context), ("Stream", Stream)):
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)

    def make(_epoch: int, indices: NDArray[np.int64]) -> Batch:
        assert opened[0] is second and len(opened) == 1 + streams
        return _batch(indices)

    wrap = threads._on_gpu if engine == "dali" else threads._for_gpu
    wrap(maker_of(make), second)(0, np.array([1]))
    assert ended[-1] is second and not opened
