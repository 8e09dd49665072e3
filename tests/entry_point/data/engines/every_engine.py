"""The options of `pipeline`, with `dali` if it is installed, and their processes."""

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.data.batch import Batch
from entry_point.data.decode.decode import OperatorDecoder
from entry_point.data.engines.batch_maker import BatchMaker
from entry_point.data.loader import Loader, _engine
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.plan.order import Plan
from entry_point.data.plan.samples import Ints


def _dali_is_installed() -> bool:
    try:
        return importlib.util.find_spec("nvidia.dali") is not None
    except ModuleNotFoundError:  # no `nvidia` package
        return False


NEEDS_DALI = pytest.mark.skipif(
    not _dali_is_installed() and not os.environ.get("REQUIRE_DALI"),
    reason="NVIDIA DALI is not installed; make test ONLY=dali installs it",
)
DALI = pytest.param("dali", marks=NEEDS_DALI)
ENGINES = ("pillow", "workers", "threads", DALI)
DECODERS = ("pillow", "threads", DALI)
"""Engines of different decoders: `workers` has that of `threads`."""
Way = Literal["pillow", "workers", "threads", "dali"]
"""An option of `pipeline`."""


def pipeline_of(way: Way, num_workers: int | None = None) -> PipelineConfig:
    if way == "pillow":
        return PipelineConfig("workers", "pillow", num_workers)
    return PipelineConfig(way, num_workers=num_workers)


def maker_of(make: Callable[[int, Ints], Batch]) -> BatchMaker:
    """A maker whose batches `make` makes from an epoch and sample indices."""

    @dataclass(frozen=True)
    class Maker:
        decoder = OperatorDecoder()

        def __call__(self, epoch: int, indices: Ints, *_: object, **__: object) -> Batch:
            return make(epoch, indices)

    return Maker()  # type: ignore[return-value]


def loader_by(
    make: Callable[[int, Ints], Batch],
    plan: Plan,
    way: Way = "threads",
    num_workers: int = 2,
    **more: Any,
) -> Loader:
    """A loader whose batches `make` makes; `more` of its LoaderSpec."""
    maker, pipeline = maker_of(make), pipeline_of(way, num_workers)
    spec = LoaderSpec(DataConfig(), pipeline, "train", 1, seed=0, **more)
    return Loader(plan, maker, _engine(maker, spec, plan.steps_per_epoch), spec)


def has_ended(pid: int) -> bool:
    """Whether the process is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
