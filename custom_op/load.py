"""Loads the compiled operators and their fake kernels into this process, once."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from custom_op.build import build
from custom_op.compiler import BuildError

_lock = threading.Lock()
_loaded: dict[str, Any] = {}
"""The result of `build_info`; empty until the operators are registered."""
FAKES: dict[str, Callable[..., Any]] = {}
"""Fake kernels by operator name; torch can register them only after the operators."""


def load() -> None:
    """Builds the operators if necessary and registers them as `torch.ops.custom_op`.

    Every public function calls this first. Raises BuildError if they cannot be built.
    """
    if not _loaded:  # a lock taken on every call could be held during a fork
        with _lock:
            if not _loaded:
                _loaded.update(_build_and_register())


def build_info() -> dict[str, Any]:
    """Returns the library's path, compiler, versions and flags, and seconds to build and load."""
    load()
    return dict(_loaded)


def _build_and_register() -> dict[str, Any]:
    started = time.perf_counter()
    library, record = build()
    _load_library(library)
    for name, kernel in FAKES.items():
        torch.library.register_fake(f"custom_op::{name}", kernel)
    seconds = round(time.perf_counter() - started, 3)
    return {"library": str(library), **record, "load_seconds": seconds}


def _load_library(library: Path) -> None:
    """Loads the library. Raises BuildError if the system cannot, or libjpeg has another version."""
    try:
        torch.ops.load_library(library)
    except OSError as error:
        reason = str(error.__cause__ or error)  # torch hides the system's message
        missing = re.match(r"(\S+): cannot open shared object|.*Library not loaded: (\S+)", reason)
        if missing and str(library) not in missing.groups():
            advice = (
                f"It needs {missing[1] or missing[2]}: install that library, or add its folder to "
                "LD_LIBRARY_PATH"
            )
        elif re.search("undefined symbol|version .* not found", reason):
            advice = "It was built with another version of that library; remove the folder"
        else:
            advice = (
                "If this file system is mounted noexec (often /tmp), set CUSTOM_OP_CACHE to a "
                "folder on another one; if the library is damaged, remove the folder"
            )
        raise BuildError(
            f"cannot load the compiled operator in {library.parent}: {reason}. {advice}"
        ) from error
    _require_one_libjpeg(library)


def _require_one_libjpeg(library: Path) -> None:
    """Raises BuildError if the linked libjpeg and jpeglib.h have different versions."""
    try:
        torch.ops.custom_op.jpeg_headers.default(
            [torch.tensor([0xFF, 0xD8, 0xFF, 0xD9], dtype=torch.uint8)], mask_errors=False
        )
    except RuntimeError as error:
        if "library version" in str(error):
            raise BuildError(
                f"jpeglib.h and libjpeg.so are of different versions ({str(error).splitlines()[0]})"
                ". One of them is found by CPATH or LIBRARY_PATH, the other in the system's "
                f"folders: name the same installation in both, and remove {library.parent}"
            ) from error
