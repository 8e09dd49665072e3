"""A copy of the config tree for the tests of files that people add to it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from entry_point.config import compose
from entry_point.config.compose import CONFIGS

Write = Callable[[str, str | bytes], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a file into a copy of the config tree, which is then the one that is composed."""
    copy = tmp_path / "configs"
    shutil.copytree(CONFIGS, copy)
    monkeypatch.setattr(compose, "CONFIGS", copy)

    def write_file(name: str, content: str | bytes) -> None:
        data = content.encode() if isinstance(content, str) else content
        (copy / f"{name}.yaml").write_bytes(data)

    return write_file
