"""Loads the compiled operator into this process, once, and tells torch what it cannot see."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import torch

from custom_op.build import build
from custom_op.toolchain import BuildError

_lock = threading.Lock()
_loaded: dict[str, Any] = {}
"""What `build_info` says; empty until the operator is registered."""


def load() -> None:
    """Builds the operator if need be and registers it as `torch.ops.custom_op`.

    Every public function calls this first. Raises BuildError when it cannot be built here.
    """
    _load()


def build_info() -> dict[str, Any]:
    """What was built, where it lies, and the seconds its build and this process's load took."""
    return dict(_load())


def _load() -> dict[str, Any]:
    if not _loaded:  # a lock taken at each call may be held at the moment of a fork
        with _lock:
            if not _loaded:
                _loaded.update(_build_and_register())
    return _loaded


def _build_and_register() -> dict[str, Any]:
    started = time.perf_counter()
    library, record = build()
    _load_library(library)
    import custom_op.fakes  # noqa: F401 - registers shapes for operators that exist from here on

    seconds = round(time.perf_counter() - started, 3)
    return {"library": str(library), **record, "load_seconds": seconds}


def _load_library(library: Path) -> None:
    """Raises BuildError, which says what to do, where the system refuses to run the library."""
    try:
        torch.ops.load_library(library)
    except OSError as error:
        raise BuildError(
            f"the compiled operator in {library.parent} cannot be loaded: {error}. A file system "
            "mounted noexec, as /tmp often is beside a read-only root, runs no code: set "
            "CUSTOM_OP_CACHE to a folder on another; or remove the folder if it is damaged"
        ) from error
