"""Parts that follow each other without a break: the same batches, made ahead, by shared workers."""

import multiprocessing
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from entry_point.config.data_config import DataConfig, PipelineConfig, usable_cores
from entry_point.data.batch import Batch
from entry_point.data.engines.feed import Feed, Part, PartReader, Schedule
from entry_point.data.engines.threads import ThreadEngine
from entry_point.data.errors import DataError
from entry_point.data.loader import Loader, build_loader, build_loaders, open_source
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.plan.order import EpochPlan
from tests.entry_point.data.engines.every_engine import DALI, Way, batches_of, feed_of, pipeline_of

ENGINES = ("pillow", "workers", "threads", DALI)
SCHEDULE = Schedule(epochs=3, evaluate_every_epochs=2)
ORDER = [("train", 0), ("train", 1), ("val", 1), ("train", 2), ("val", 2)]


def specs(root: Path, engine: Way, workers: int = 2) -> dict[str, LoaderSpec]:
    data = DataConfig(root=str(root), image_size=32, resize=40)
    pipeline = pipeline_of(engine, num_workers=workers)
    return {split: LoaderSpec(data, pipeline, split, 10, seed=4) for split in ("train", "val")}


def shared_loaders(root: Path, engine: Way, workers: int = 2) -> dict[str, Loader]:
    splits = specs(root, engine, workers)
    pairs = [(open_source(spec.data, split, root), spec) for split, spec in splits.items()]
    return dict(zip(splits, build_loaders(pairs, SCHEDULE.after), strict=True))


def alone(root: Path, engine: Way, part: Part) -> list[Batch]:
    spec = specs(root, engine)[part.split]
    loader = build_loader(open_source(spec.data, part.split, root), spec)
    batches = list(loader.epoch(part.epoch, part.step))
    loader.close()
    return batches


def assert_same(left: list[Batch], right: list[Batch]) -> None:
    assert len(left) == len(right) > 0
    for a, b in zip(left, right, strict=True):
        assert torch.equal(a.indices, b.indices) and torch.equal(a.images, b.images)


def test_a_schedule_alternates_training_and_evaluation_and_ends() -> None:
    part: Part | None = Part("train", 0, step=7)
    seen = []
    while part is not None:
        seen.append((part.split, part.epoch))
        part = SCHEDULE.after(part)
    assert seen == ORDER


@pytest.mark.parametrize("engine", ENGINES)
def test_a_job_in_its_order_reads_the_batches_of_separate_loaders(
    engine: Way, photo_folder: Path
) -> None:
    loaders = shared_loaders(photo_folder, engine)
    for split, epoch in ORDER:
        batches = list(loaders[split].epoch(epoch))
        assert_same(batches, alone(photo_folder, engine, Part(split, epoch)))
    loaders["train"].close()
    loaders["val"].close()


@pytest.mark.parametrize("engine", ENGINES)
def test_parts_out_of_order_or_left_early_read_the_same(engine: Way, photo_folder: Path) -> None:
    loaders = shared_loaders(photo_folder, engine)
    for part, taken in (
        (Part("train", 1), 4),
        (Part("train", 0, 2), 2),
        (Part("val", 1), 1),
        (Part("train", 2), 4),
        (Part("val", 0), 3),
    ):
        batches = loaders[part.split].epoch(part.epoch, part.step)
        some = [next(batches) for _ in range(taken)]
        assert_same(some, alone(photo_folder, engine, part)[:taken])
    loaders["train"].close()


@pytest.mark.parametrize("engine", ["pillow", "workers"])
def test_training_and_validation_share_their_processes(engine: Way, photo_folder: Path) -> None:
    others = set(multiprocessing.active_children())
    loaders = shared_loaders(photo_folder, engine)
    for split, epoch in ORDER:
        list(loaders[split].epoch(epoch))
        assert len(set(multiprocessing.active_children()) - others) == 2
    loaders["train"].close()


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


def thread_engine(feed: Feed, workers: int = 2) -> PartReader:
    pipeline = PipelineConfig("threads", num_workers=workers)
    spec = LoaderSpec(DataConfig(), pipeline, "train", 1, seed=0)
    return PartReader(feed, ThreadEngine(feed, spec))


def next_epoch(part: Part) -> Part | None:
    return Part("train", part.epoch + 1) if part.epoch < 2 else None


def test_the_next_epoch_is_made_while_the_last_batches_of_this_one_are_used() -> None:
    made = Made()
    engine = thread_engine(feed_of(made, EpochPlan(8, 1, 0, True), next_epoch))
    batches = batches_of(engine, Part("train", 0))
    for _ in range(7):
        next(batches)
    assert made.wait_for(epoch=1)  # although the eighth batch has not been asked for
    rest = [*batches, *(batch for n in (1, 2) for batch in batches_of(engine, Part("train", n)))]
    engine.close()
    assert len(rest) == 1 + 8 + 8 and len(made.requests) == 24  # none was made twice
    assert len(made.threads) <= 2


def test_an_error_made_ahead_waits_for_its_turn() -> None:
    def make(epoch: int, indices: NDArray[np.int64]) -> Batch:
        if epoch:
            raise DataError("a.jpg: damaged")
        return Batch(torch.zeros(1), torch.zeros(1), torch.from_numpy(indices))

    engine = thread_engine(feed_of(make, EpochPlan(8, 1, 0, True), next_epoch))
    assert len(list(batches_of(engine, Part("train", 0)))) == 8
    with pytest.raises(DataError, match=r"a\.jpg: damaged"):
        next(batches_of(engine, Part("train", 1)))
    engine.close()


class Remembered(EpochPlan):
    """Notes when its bytes are released."""

    def batches(self, epoch: int, start_step: int = 0) -> Iterator[NDArray[np.int64]]:
        return super().batches(epoch, start_step)

    def read_ahead(self, reader: ThreadPoolExecutor) -> None: ...

    def release(self) -> None:
        RELEASED.append(self.train)


RELEASED: list[bool] = []


def test_bytes_are_released_once_another_split_is_read_but_not_those_of_the_next_epoch() -> None:
    train, val = Remembered(4, 1, 0, True), Remembered(4, 1, 0, False)
    feed = Feed({}, {"train": train, "val": val}, Schedule(3, 2).after)
    RELEASED.clear()
    for number, (split, _, _) in enumerate(feed.requests(Part("train", 0))):
        if number in (5, 9, 13):  # each part is taken when two batches of the next are made
            feed.taken(Part("train" if number != 13 else "val", 0))
        if number == 6:
            assert split == "train" and RELEASED == []
        if number == 10:
            assert split == "val" and RELEASED == [True]
        if number == 14:
            assert split == "train" and RELEASED == [True, False]


@pytest.mark.parametrize(("ranks", "share"), [("2", usable_cores() // 2), ("1000", 1)])
def test_the_ranks_of_a_host_share_its_cores(
    ranks: str, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert PipelineConfig().worker_count() == usable_cores()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert PipelineConfig().worker_count() == max(1, share)
    assert PipelineConfig(num_workers=5).worker_count() == 5


@pytest.mark.parametrize(
    ("engine", "device", "announced"),
    [
        ("threads", "cuda", "4 workers and up to 6 batches ahead, 403 MB of pinned memory"),
        (
            "workers",
            "cuda",
            "4 workers and up to 8 batches ahead, 537 MB of shared, then pinned memory",
        ),
        ("dali", "cuda", "4 workers and up to 4 batches ahead, 154 MB of GPU memory"),
    ],
)
def test_the_pipeline_announces_its_workers_and_their_memory(
    engine: Way, device: str, announced: str
) -> None:
    pipeline = pipeline_of(engine, num_workers=4)
    spec = LoaderSpec(DataConfig(), pipeline, "train", 256, 0, device=torch.device(device))
    assert spec.describe() == f"{engine}; per rank {announced}"
