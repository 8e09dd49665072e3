"""The pipeline engines, with `dali` if it is installed, and their processes."""

import importlib.util
import os
from pathlib import Path

import pytest


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
ENGINES = ("pillow", "workers", "threads", "subprocess", DALI)


def has_ended(pid: int) -> bool:
    """Whether the process is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
