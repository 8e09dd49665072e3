"""The options of `pipeline`, with `dali` if it is installed, and their processes."""

import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from entry_point.config.data_config import PipelineConfig
from entry_point.data.batch import Batch
from entry_point.data.engines.feed import After, Feed, Part, PartReader, nothing_after
from entry_point.data.plan.order import Plan
from entry_point.data.plan.samples import Ints


def _dali_is_installed() -> bool:
    try:
        return importlib.util.find_spec("nvidia.dali") is not None
    except ModuleNotFoundError:  # no `nvidia` package
        return False


_NEEDS_DALI = pytest.mark.skipif(
    not _dali_is_installed() and not os.environ.get("REQUIRE_DALI"),
    reason="NVIDIA DALI is not installed; make test ONLY=dali installs it",
)
DALI = pytest.param("dali", marks=_NEEDS_DALI)
ENGINES = ("pillow", "workers", "threads", DALI)
Way = Literal["pillow", "workers", "threads", "dali"]
"""An option of `pipeline`."""


def pipeline_of(way: Way, num_workers: int | None = None) -> PipelineConfig:
    if way == "pillow":
        return PipelineConfig("workers", "pillow", num_workers)
    return PipelineConfig(way, num_workers=num_workers)


def feed_of(make: Callable[..., Batch], plan: Plan, after: After = nothing_after) -> Feed:
    """One split whose batches `make` makes from an epoch and sample indices."""

    @dataclass(frozen=True)
    class Maker:
        def __call__(self, epoch: int, indices: Ints, **_: object) -> Batch:
            return make(epoch, indices)

        def close(self) -> None: ...

    return Feed({"train": Maker()}, {"train": plan}, after)  # type: ignore[dict-item]


def batches_of(parts: PartReader, part: Part) -> Iterator[Batch]:
    """As a loader reads them."""
    for outcome in parts.read(part):
        if isinstance(outcome, Exception):
            parts.stop()
            raise outcome
        yield outcome


def has_ended(pid: int) -> bool:
    """Whether the process is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
