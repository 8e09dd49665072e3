"""Runs `entry_point.predict`, and reads what it wrote as another program does."""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision.transforms.v2.functional as F
from PIL import Image, ImageOps

from tests import commands, forkserver
from tests.forkserver import Program


def arguments(model: Path, source: Path, output: Path, *more: str) -> list[str]:
    """A command without processes of its own; `more` settings override it."""
    paths = (f"model_dir={model}", f"input={source}", f"output_dir={output}")
    return [*paths, "batch_size=5", "pipeline=pillow", "pipeline.num_workers=0", *more]


def run(model: Path, source: Path, output: Path, *more: str) -> int:
    """Predict in this process; returns the exit code."""
    return commands.predict(arguments(model, source, output, *more))


def table(folder: Path) -> Any:
    """All parts as one table: pyarrow, like other readers, ignores hidden files."""
    import pyarrow.parquet as pq  # not at the top: the tests that a GPU machine runs have none

    return pq.read_table(folder)


def score_names(folder: Path) -> list[str]:
    """The names of the scores, from the metadata of the first file."""
    import pyarrow.parquet as pq

    names: list[str] = json.loads(pq.read_metadata(min(folder.iterdir())).metadata[b"names"])
    return names


def rows(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table(folder).to_pylist()
    return found


def assert_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """The same rows, with scores that other batches may round differently."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        lists = {key for key, value in other.items() if isinstance(value, list)}
        assert {key: one[key] for key in lists} == {
            key: pytest.approx(other[key], abs=1e-5) for key in lists
        }
        exact = other.keys() - lists - {"probability"}
        assert {key: one[key] for key in exact} == {key: other[key] for key in exact}


def start(command: Sequence[str], log: Path, code: str) -> Program:
    """The command `predict` in a process that runs `code` before."""
    call = f"from entry_point.__main__ import main\nraise SystemExit(main({['predict', *command]}))"
    return forkserver.start(["-c", f"{code}\n{call}"], log)


def names(folder: Path) -> Mapping[str, int]:
    """All files, also hidden ones, and when they were written."""
    return {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}


def center_crop(content: bytes, image_size: int, resize: int) -> torch.Tensor:
    """The center crop that validation uses, by Pillow: uint8 `(3, image_size, image_size)`."""
    with Image.open(io.BytesIO(content)) as image:
        upright = ImageOps.exif_transpose(image).convert("RGB")
    width, height = upright.size
    side = max(1, round(min(width, height) * image_size / resize))
    left, top = (width - side) // 2, (height - side) // 2
    sample = upright.crop((left, top, left + side, top + side)).resize(
        (image_size, image_size), Image.Resampling.BILINEAR
    )
    return F.pil_to_tensor(sample)
