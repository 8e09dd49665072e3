import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

import custom_op.build as building
from custom_op.toolchain import find_toolchain


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary directory, to which everybody may write."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def cache(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of this process and its children; builds elsewhere go to `temporary`."""
    assert temporary.is_dir()
    monkeypatch.setenv("CUSTOM_OP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A C++ source of one line, which this process and its children build as the operator."""
    package = tmp_path / "package"
    (package / "csrc" / "jpeg").mkdir(parents=True)
    (package / "csrc" / "jpeg" / "answer.cpp").write_text("int answer() { return 42; }\n")
    (package / "toolchain.py").touch()
    monkeypatch.setattr(building, "SOURCES", package / "csrc")
    monkeypatch.setattr(building, "_TOOLCHAIN", package / "toolchain.py")
    return package / "csrc"


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes a shell script, which becomes CXX: it runs `first`, then the real compiler."""
    real = find_toolchain().compiler

    def make(first: str) -> Path:
        path = tmp_path / "compiler"
        path.write_text(f'#!/bin/sh\n{first}\nexec {real} "$@"\n')
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        return path

    return make
