from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from custom_op.toolchain import find_toolchain
from tests.custom_op.building.build_process import copy_tree


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The package with only two of its C++ sources: enough to test the build."""
    return copy_tree(tmp_path / "tree")


@pytest.fixture
def compiler(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a shell script that runs `first`, then the real compiler."""

    def make(first: str) -> Path:
        path = tmp_path / "compiler"
        real = find_toolchain().compiler
        path.write_text(f'#!/bin/sh\n{first}\nexec {real} "$@"\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return make
