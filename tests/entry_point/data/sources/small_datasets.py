"""Datasets of tiny images, as people lay them out, and what opening them finds."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from entry_point.config.data_config import DataConfig
from entry_point.data.errors import DataError
from entry_point.data.sources.dataset import Dataset, open_dataset
from entry_point.data.sources.source import Source

NAMES = [f"{name}/{number}.jpg" for name in ("cat", "dog") for number in range(20)]


@cache
def jpeg() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "JPEG")
    return file.getvalue()


def write(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(jpeg())
    return root


def splits(root: Path, *words: str) -> Path:
    """Two classes of 20 images in each of these folders."""
    return write(root, *(f"{word}/{name}" for word in words for name in NAMES))


def table(file: Path, rows: Iterable[str], header: str = "path,label") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([header, *rows, ""]))
    return file


def labeled(*names: str) -> list[str]:
    """Rows of images in class folders."""
    return [f"{name},{name.split('/')[-2]}" for name in names]


def write_tar(file: Path, *members: tuple[str, bytes]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file


def members(labels: Sequence[object]) -> list[tuple[str, bytes]]:
    """Those of a sample with each of the labels."""
    return [
        each
        for i, label in enumerate(labels)
        for each in ((f"{i:03}.jpg", jpeg()), (f"{i:03}.cls", str(label).encode()))
    ]


def opened(root: Path, *, for_training: bool = True, **data: Any) -> Dataset:
    return open_dataset(DataConfig(root=str(root), **data), root, for_training=for_training)


def counts(dataset: Dataset) -> dict[str, int]:
    return {split: len(dataset.source(split)) for split in dataset.splits}


def keys(source: Source) -> list[str]:
    return [source.key(i) for i in range(len(source))]


def refusal(root: Path, **data: Any) -> str:
    with pytest.raises(DataError) as error:
        opened(root, **data)
    assert "\n" not in str(error.value)
    return str(error.value)
