"""Sources that are wrong, for the tests; a setting names them by dotted path."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from entry_point.data.sources.source import FileSource


def without_read(_root: Path, _split: str) -> Any:
    return SimpleNamespace(classes=["a"], labels=torch.zeros(1))


def empty(_root: Path, _split: str) -> FileSource:
    return FileSource([], [], ["a", "b"])


def out_of_range(_root: Path, _split: str) -> FileSource:
    return FileSource(["a.jpg"], [2], ["a", "b"])


def wrong_shape(_root: Path, _split: str) -> FileSource:
    return FileSource(["a.jpg"], [[1.0]], ["a", "b"], "labels")


def of_no_kind(_root: Path, _split: str) -> FileSource:
    return FileSource(["a.jpg"], [[1.0]], ["a"], "boxes")  # type: ignore[arg-type]
