"""Builds of the operator in processes of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import custom_op

BUILD = "from custom_op.build import build; print(build()[0])"

PACKAGE = Path(custom_op.__file__).parent


def copy_tree(root: Path) -> Path:
    """The package with only two of its C++ sources: enough to test the build."""
    sources = root / "custom_op" / "csrc"
    sources.mkdir(parents=True)
    for path in PACKAGE.glob("*.py"):
        shutil.copy(path, root / "custom_op")
    for name in (
        "pixels/color.cpp",
        "pixels/color.h",
        "jpeg/header.cpp",
        "jpeg/header.h",
        "jpeg/markers.h",
        "types.h",
    ):
        (sources / name).parent.mkdir(exist_ok=True)
        shutil.copy(PACKAGE / "csrc" / name, sources / name)
    return root


def start(
    tree: Path, cache: Path, code: str = BUILD, limits: Any = None, **environment: str
) -> subprocess.Popen[str]:
    """`limits` runs in the child before it starts Python."""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tree,
        env={**os.environ, "CUSTOM_OP_CACHE": str(cache), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=limits,
    )


def run(tree: Path, cache: Path, code: str = BUILD, **environment: str) -> str:
    process = start(tree, cache, code, **environment)
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    return out + errors


def built(output: str) -> Path:
    """The library that `run` printed."""
    return Path(next(line for line in output.splitlines() if line.endswith("/custom_op.so")))
