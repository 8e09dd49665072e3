"""Runs the packing command and reads its output, for the tests."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from entry_point.data.sources.source import Source, read_images
from entry_point.job.program import ExitCode
from tests.commands import check_dataset, optimize
from tests.entry_point.data.loaders import source_of


def pack(source: Path, output: Path, *options: str) -> int:
    return optimize(arguments(source, output, *options))


def arguments(source: Path, output: Path, *options: str) -> list[str]:
    return [f"source={source}", f"output={output}", "shard_mb=0.125", *options]


def command(source: Path, output: Path) -> list[str]:
    return [sys.executable, "-m", "entry_point", "optimize", *arguments(source, output)]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def index(packed: Path, split: str = "train", name: str = "index.safetensors") -> dict[str, Any]:
    """The columns of a split's index, as the safetensors package reads them; keys as texts."""
    columns: dict[str, Any] = load_file(packed / split / name)
    text, ends = columns["key"].tobytes(), columns["key_end"].tolist()
    columns["key"] = [text[a:b].decode() for a, b in zip([0, *ends], ends, strict=False)]
    return columns


def report(packed: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((packed / "report.json").read_text())
    return content


def rejected(packed: Path, split: str = "train") -> dict[str, str]:
    """Reasons by path."""
    reasons: dict[str, str] = report(packed)["splits"][split]["rejected"]
    return reasons


def damage_log(root: Path, caplog: pytest.LogCaptureFixture) -> str:
    """The log of a check that finds damage."""
    with caplog.at_level("INFO"):
        assert check_dataset([f"root={root}"]) == ExitCode.FAILED
    return caplog.text


def samples(root: Path, split: str) -> dict[str, tuple[int, bytes]]:
    """Label and bytes of each sample by key."""
    source = source_of(root, split)
    return {
        source.key(i).split(": ")[1]: (int(source.labels[i]), bytes(source.read(i).numpy()))
        for i in range(len(source))
    }


def side_indexes(root: Path, split: str) -> dict[str, bytes]:
    """The side index of each sample by key, empty for one without."""
    source = source_of(root, split)
    found = index_bytes(source)
    return {source.key(i).split(": ")[1]: index for i, index in enumerate(found)}


def index_bytes(source: Source) -> list[bytes]:
    """The side index of each image, empty for one without."""
    indexes = read_images(source, np.arange(len(source))).indexes
    if indexes is None:
        return [b""] * len(source)
    return [index.numpy().tobytes() for index in indexes]


def copy(folder: Path, target: Path) -> Path:
    return Path(shutil.copytree(folder, target))
