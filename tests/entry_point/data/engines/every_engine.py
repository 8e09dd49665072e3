"""The pipeline engines; `dali` where it is installed."""

import importlib.util
import os

import pytest


def _dali_is_installed() -> bool:
    try:
        return importlib.util.find_spec("nvidia.dali") is not None
    except ModuleNotFoundError:  # nothing of NVIDIA's
        return False


_NEEDS_DALI = pytest.mark.skipif(
    not _dali_is_installed() and not os.environ.get("REQUIRE_DALI"),
    reason="NVIDIA DALI is not installed; make test-dali installs it",
)
DALI = pytest.param("dali", marks=_NEEDS_DALI)
ENGINES = ("pillow", "workers", "threads", "subprocess", DALI)
