"""The pipeline engines, with `dali` if it is installed, and their processes."""

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from entry_point.data.batch import Batch
from entry_point.data.engines.feed import Feed
from entry_point.data.plan.crops import Ints
from entry_point.data.plan.order import Plan
from entry_point.data.plan.schedule import After, nothing_after


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


def feed_of(make: Callable[..., Batch], plan: Plan, after: After = nothing_after) -> Feed:
    """One split whose batches `make` makes from an epoch and sample indices."""

    @dataclass(frozen=True)
    class Maker:
        def __call__(self, epoch: int, indices: Ints, **_: object) -> Batch:
            return make(epoch, indices)

        def close(self) -> None: ...

    return Feed({"train": Maker()}, {"train": plan}, after)  # type: ignore[dict-item]


def has_ended(pid: int) -> bool:
    """Whether the process is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
