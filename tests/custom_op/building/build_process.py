"""Builds of the operator in processes of their own."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import custom_op
from tests import forkserver
from tests.forkserver import Program

BUILD = "from custom_op.build import build; print(build()[0])"

PACKAGE = Path(custom_op.__file__).parent


def copy_tree(root: Path) -> Path:
    """The package with only two of its C++ sources: enough to test the build."""
    sources = root / "custom_op" / "csrc"
    sources.mkdir(parents=True)
    for path in PACKAGE.glob("*.py"):
        shutil.copy(path, root / "custom_op")
    for name in (
        "jpeg/restarts.cpp",
        "jpeg/restarts.h",
        "jpeg/header.cpp",
        "jpeg/header.h",
        "jpeg/markers.h",
        "types.h",
    ):
        (sources / name).parent.mkdir(exist_ok=True)
        shutil.copy(PACKAGE / "csrc" / name, sources / name)
    return root


def start(
    tree: Path,
    cache: Path,
    code: str = BUILD,
    prepare: Any = None,
    **environment: str,
) -> Program:
    """`prepare` runs in the process before `code`."""
    output = Path(tempfile.mkdtemp(dir=tree.parent, prefix="build-"))
    return forkserver.start(
        ["-c", code],
        output / "log",
        errors=output / "errors",
        environment={"CUSTOM_OP_CACHE": str(cache), **environment},
        tree=tree,
        prepare=prepare,
    )


def run(tree: Path, cache: Path, code: str = BUILD, prepare: Any = None, **environment: str) -> str:
    out, errors = (process := start(tree, cache, code, prepare, **environment)).communicate()
    assert process.returncode == 0, errors
    return out + errors


def built(output: str) -> Path:
    """The library that `run` printed."""
    return Path(next(line for line in output.splitlines() if line.endswith("/custom_op.so")))
