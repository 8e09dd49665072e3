"""Epochs that follow each other without a break: the same batches, made ahead."""

import multiprocessing
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.config.train_config import TrainerConfig
from entry_point.data.batch import Batch
from entry_point.data.engines.batch_maker import Outcome
from entry_point.data.errors import DataError
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.plan.order import EpochPlan
from entry_point.job.cores import usable_cores
from tests.entry_point.data.engines.every_engine import ENGINES, Way, loader_by, pipeline_of
from tests.entry_point.data.loaders import loader_of


@pytest.mark.parametrize(
    ("epochs", "every", "evaluated"),
    [(3, 1, [0, 1, 2]), (3, 2, [1, 2]), (4, 2, [1, 3]), (3, 5, [2])],
)
def test_every_so_many_epochs_and_the_last_are_evaluated(
    epochs: int, every: int, evaluated: list[int]
) -> None:
    trainer = TrainerConfig(epochs=epochs, evaluate_every_epochs=every)
    assert trainer.evaluated_epochs == evaluated


@pytest.mark.parametrize("engine", ENGINES)
def test_epochs_in_order_out_of_order_or_left_early_have_the_batches_of_epochs_read_alone(
    engine: Way, photo_folder: Path
) -> None:
    order = [(0, 0, 5), (1, 0, 5), (2, 0, 5), (1, 0, 1), (0, 2, 2), (2, 0, 3), (0, 1, 5)]
    alone = loader_of(photo_folder, engine, workers=0)
    expected = [list(alone.epoch(epoch)) for epoch in range(3)]
    assert [len(batches) for batches in expected] == [4, 4, 4]
    loader = loader_of(photo_folder, engine, workers=2, spec={"epochs": range(3)})
    for epoch, step, taken in order:
        found = list(islice(loader.epoch(epoch, step), taken))
        for batch, same in zip(found, expected[epoch][step : step + taken], strict=True):
            assert torch.equal(batch.indices, same.indices)
            assert torch.equal(batch.images, same.images)
    alone.close()
    loader.close()


def test_the_worker_processes_of_a_split_stay_from_epoch_to_epoch(photo_folder: Path) -> None:
    others = set(multiprocessing.active_children())
    loader = loader_of(photo_folder, "pillow", workers=2, spec={"epochs": range(3)})
    seen = set()
    for epoch in range(2):
        list(loader.epoch(epoch))
        seen |= set(multiprocessing.active_children()) - others
    assert len(seen) == 2
    list(loader.epoch(2))
    assert not seen & set(multiprocessing.active_children())  # there is nothing more to make
    loader.close()


class Made:
    """Batches of one sample; counts them, and the threads that make them."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, int]] = []
        self.threads: set[int] = set()
        self.changed = threading.Condition()

    def __call__(self, epoch: int, indices: NDArray[np.int64]) -> Batch:
        with self.changed:
            self.requests.append((epoch, int(indices[0])))
            self.threads.add(threading.get_ident())
            self.changed.notify_all()
        return Batch(torch.zeros(1), torch.zeros(1), torch.from_numpy(indices))

    def wait_for(self, epoch: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: any(e == epoch for e, _ in self.requests), 60)


def test_the_next_epoch_is_made_while_the_last_batches_of_this_one_are_used() -> None:
    made = Made()
    loader = loader_by(made, EpochPlan(8, 1, 0, True), epochs=range(3))
    batches = loader.epoch(0)
    for _ in range(7):
        next(batches)
    assert made.wait_for(epoch=1)  # although the eighth batch has not been asked for
    rest = [*batches, *(batch for epoch in (1, 2) for batch in loader.epoch(epoch))]
    loader.close()
    assert len(rest) == 1 + 8 + 8 and len(made.requests) == 24  # none was made twice
    assert len(made.threads) <= 2


def test_an_error_made_ahead_waits_for_its_turn() -> None:
    def make(epoch: int, indices: NDArray[np.int64]) -> Batch:
        if epoch:
            raise DataError("a.jpg: damaged")
        return Batch(torch.zeros(1), torch.zeros(1), torch.from_numpy(indices))

    loader = loader_by(make, EpochPlan(8, 1, 0, True), epochs=range(2))
    assert len(list(loader.epoch(0))) == 8
    with pytest.raises(DataError, match=r"a\.jpg: damaged"):
        next(loader.epoch(1))
    loader.close()


def taken_then_interrupted(outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
    next(outcomes)
    raise KeyboardInterrupt
    yield


def test_an_interrupted_wait_loses_no_batch() -> None:
    plan = EpochPlan(8, 1, 0, True)
    loader = loader_by(Made(), plan, epochs=range(1))
    batches = loader.epoch(0)
    seen = [next(batches).indices.numpy() for _ in range(2)]
    loader._outcomes = taken_then_interrupted(loader._outcomes)
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    seen += [batch.indices.numpy() for batch in loader.epoch(0, 2)]
    loader.close()
    assert np.array_equal(seen, list(plan.batches(0)))


class Remembered(EpochPlan):
    """Notes when its bytes are released."""

    def read_ahead(self, reader: ThreadPoolExecutor) -> None: ...

    def release(self) -> None:
        RELEASED.append(self.count)


RELEASED: list[int] = []


def test_bytes_are_released_after_the_last_epoch_but_not_those_of_the_next() -> None:
    loader = loader_by(Made(), Remembered(8, 1, 0, True), epochs=range(2))
    batches = loader.epoch(0)
    next(batches)
    RELEASED.clear()
    list(batches)
    assert not RELEASED
    list(loader.epoch(1))
    assert RELEASED
    loader.close()


@pytest.mark.parametrize(("ranks", "share"), [("2", usable_cores() // 2), ("1000", 1)])
def test_the_ranks_of_a_host_share_its_cores(
    ranks: str, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert PipelineConfig().worker_count() == usable_cores()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert PipelineConfig().worker_count() == max(1, share)
    assert PipelineConfig(num_workers=5).worker_count() == 5


def test_the_pipeline_announces_its_workers() -> None:
    spec = LoaderSpec(DataConfig(), pipeline_of("threads", num_workers=4), "train", 256, 0)
    assert spec.describe() == "threads; 4 workers per rank and split"
