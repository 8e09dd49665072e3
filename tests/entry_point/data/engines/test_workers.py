"""Worker processes: when they end, and where they are refused."""

import gc
import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from entry_point.config.config_errors import ConfigError
from entry_point.data.batch import Batch
from entry_point.data.errors import DataError
from entry_point.data.plan.order import EpochPlan
from tests.entry_point.data.engines.every_engine import loader_by


def black_batch(_epoch: int, indices: np.ndarray) -> Batch:
    numbers = torch.from_numpy(indices)
    return Batch(torch.zeros(len(indices), 3, 8, 8, dtype=torch.uint8), numbers, numbers)


class Left:
    """Garbage that only the collector finds; its finalizer leaves a file with its process's id."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.itself = folder, self

    def __del__(self) -> None:
        (self.folder / str(os.getpid())).touch()


def test_a_worker_finalizes_nothing_that_the_trainer_has_left(tmp_path: Path) -> None:
    """DALI's pipelines, whose threads a fork lacks, ended workers with a segmentation fault."""

    def make_batch(epoch: int, indices: np.ndarray) -> Batch:
        gc.collect()
        return black_batch(epoch, indices)

    loader = loader_by(make_batch, EpochPlan(16, 4, 0, True), "pillow", 1)
    gc.disable()
    try:
        Left(tmp_path)
        assert len(list(loader.epoch(0))) == 4
        assert not list(tmp_path.iterdir())
    finally:
        gc.enable()
    loader.close()
    gc.collect()
    assert [path.name for path in tmp_path.iterdir()] == [str(os.getpid())]


def test_an_error_ends_the_workers_before_it_is_handled() -> None:
    def make_batch(_epoch: int, _indices: np.ndarray) -> Batch:
        raise DataError("a.jpg: damaged")

    others = multiprocessing.active_children()
    loader = loader_by(make_batch, EpochPlan(16, 4, 0, True), "pillow")
    gc.disable()  # their end must not depend on the collector
    try:
        with pytest.raises(DataError, match=r"a\.jpg: damaged"):
            try:
                list(loader.epoch(0))
            finally:
                assert set(multiprocessing.active_children()) <= set(others)
    finally:
        gc.enable()
    loader.close()


def test_workers_are_forked_by_whatever_method_python_starts_processes() -> None:
    """By a server of forks, as in 3.14, each would import torch and get a pickled source."""

    def make_batch(epoch: int, indices: np.ndarray) -> Batch:
        return black_batch(epoch, indices)  # as a source with an open file, it cannot be pickled

    method = multiprocessing.get_start_method()
    multiprocessing.set_start_method("forkserver", force=True)
    try:
        loader = loader_by(make_batch, EpochPlan(16, 4, 0, True), "workers", 2)
        assert len(list(loader.epoch(0))) == 4
        loader.close()
    finally:
        multiprocessing.set_start_method(method, force=True)


def test_forks_of_a_trainer_that_shares_memory_with_the_network_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")

    def build(ranks: int, workers: int) -> None:
        spec: dict[str, Any] = {"world_size": ranks, "device": torch.device("cuda")}
        loader_by(black_batch, EpochPlan(16, 4, 0, True), "workers", workers, **spec).close()

    with pytest.raises(ConfigError, match=r"^pipeline\.engine=workers: forks the trainer"):
        build(ranks=16, workers=2)
    build(ranks=16, workers=0)
    build(ranks=8, workers=2)
