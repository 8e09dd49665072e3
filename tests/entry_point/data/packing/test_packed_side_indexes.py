"""Packing keeps the bytes of baseline JPEGs, and indexes all JPEGs at the end of their shards."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from custom_op import index_jpeg
from entry_point.config.data_config import Access, DataConfig
from entry_point.config.packing_config import OptimizeConfig
from entry_point.data.batch import Batch
from entry_point.data.loader import open_source
from entry_point.data.packing.encode import encode
from entry_point.data.packing.pack import pack as pack_folder
from entry_point.data.sources.shards import PackedSource
from entry_point.data.sources.source import FileSource
from entry_point.job.program import ExitCode
from tests.commands import check_dataset
from tests.entry_point.data.engines.every_engine import Way
from tests.entry_point.data.packing.pack_command import (
    copy,
    index,
    rejected,
    report,
    samples,
    side_indexes,
)
from tests.entry_point.data.sources.packed_loaders import epoch_of, loader_of


def _is_progressive(data: bytes) -> bool:
    return "progression" in Image.open(io.BytesIO(data)).info


def _pixels(data: bytes) -> bytes:
    return Image.open(io.BytesIO(data)).tobytes()


def test_baseline_jpegs_keep_their_bytes_and_every_jpeg_has_its_index(
    photo_folder: Path, packed: Path
) -> None:
    kept = rewritten = 0
    for split in ("train", "val"):
        indexes = side_indexes(packed, split)
        for name, (_, data) in samples(packed, split).items():
            original = (photo_folder / split / name).read_bytes()
            if _is_progressive(original):
                rewritten += 1
                assert not _is_progressive(data)
            else:
                kept += 1
                assert data == original
            assert _pixels(data) == _pixels(original)
            jpeg = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            assert indexes[name] == index_jpeg(jpeg).numpy().tobytes() != b""
    counts = [report(packed)["splits"][split]["how"] for split in ("train", "val")]
    assert kept == sum(how["indexed"] for how in counts) > 40
    assert rewritten == sum(how["rewritten"] for how in counts) > 0


def _two_classes(photo_folder: Path, target: Path) -> Path:
    """Four baseline files in two classes."""
    for name in ("cat", "china"):
        for number in range(2):
            file = target / "train" / name / f"{number}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.open(photo_folder / f"train/{name}/00{number}.jpg").save(file, quality=90)
    return target


def test_a_file_with_restart_markers_is_kept_as_it_is(photo_folder: Path, tmp_path: Path) -> None:
    photo = Image.open(photo_folder / "train/cat/000.jpg")
    photo.save(tmp_path / "marked.jpg", quality=90, restart_marker_blocks=7)
    original = (tmp_path / "marked.jpg").read_bytes()
    size, encoded = encode(FileSource([tmp_path / "marked.jpg"], [0], ["a"]), 0, OptimizeConfig())
    assert encoded.data == original and size == len(original) and not encoded.index
    assert encoded.how == "kept" and "it has restart markers" in encoded.note


def test_a_truncated_file_is_rejected_as_before(photo_folder: Path, tmp_path: Path) -> None:
    source = _two_classes(photo_folder, tmp_path / "source")
    file = source / "train/cat/0.jpg"
    file.write_bytes(file.read_bytes()[:-2000])
    pack_folder(source, tmp_path / "packed", OptimizeConfig())
    assert "truncated" in rejected(tmp_path / "packed")["cat/0.jpg"]


def _images(root: Path, engine: Way = "threads", access: Access = "map") -> Tensor:
    return _in_order(epoch_of(loader_of(root, engine, access=access)))


def _in_order(batches: list[Batch]) -> Tensor:
    """The images of an epoch by their number: the order depends on the access."""
    order = torch.cat([batch.indices for batch in batches]).argsort()
    return torch.cat([batch.images for batch in batches])[order]


@pytest.fixture(scope="module")
def plain(packed: Path) -> Tensor:
    """What one epoch of training sees, decoded without side indexes."""
    loader = loader_of(packed)
    source = loader._maker.source
    assert isinstance(source, PackedSource) and source.indexes(np.arange(1)) is not None
    source.side = None
    assert source.indexes(np.arange(1)) is None
    return _in_order(epoch_of(loader))


@pytest.mark.parametrize(
    ("engine", "access"),
    [("threads", "map"), ("threads", "stream"), ("workers", "stream")],
)
def test_side_indexes_change_no_pixel_with_any_engine_or_access(
    packed: Path, plain: Tensor, engine: Way, access: Access
) -> None:
    images = _images(packed, engine, access)
    if engine == "workers":  # torch resizes there
        assert (images.int() - plain.int()).abs().max() <= 1
    else:
        assert torch.equal(images, plain)


@pytest.mark.parametrize("held", [True, False])
def test_a_stream_gives_the_same_indexes_from_memory_and_from_the_file(
    packed: Path, held: bool
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    data = DataConfig(format="shards", root=str(packed), access="stream")
    source = open_source(data, "train", packed)
    assert hasattr(source, "hold") and hasattr(source, "indexes")
    with ThreadPoolExecutor(1) as reader:
        if held:
            source.hold(reader, [0, 2])
        found = source.indexes(np.arange(len(source))) or []
    expected = side_indexes(packed, "train")
    for i, one in enumerate(found):
        assert one.numpy().tobytes() == expected[source.key(i).split(": ")[1]]


def _shift(side_indexes: np.ndarray) -> np.ndarray:
    return np.roll(side_indexes, 1000)


def _flip_bits(side_indexes: np.ndarray) -> np.ndarray:
    side_indexes[::97] ^= 8
    return side_indexes


@pytest.mark.parametrize("access", ["map", "stream"])
@pytest.mark.parametrize("damage", [_shift, _flip_bits])
def test_damaged_side_indexes_cost_no_pixel_and_are_found_by_a_check(
    packed: Path,
    plain: Tensor,
    tmp_path: Path,
    damage: Callable[[np.ndarray], np.ndarray],
    access: Access,
    caplog: pytest.LogCaptureFixture,
) -> None:
    root = copy(packed, tmp_path / "copy")
    rows, shards = index(packed), sorted((root / "train").glob("*.tar"))
    for number, file in enumerate(shards):
        data, own = np.fromfile(file, np.uint8), rows["shard"] == number
        start = int(rows["side_offset"][own].min())
        end = start + int(rows["side_length"][own].sum())
        data[start:end] = damage(data[start:end])
        data.tofile(file)
    assert torch.equal(_images(root, access=access), plain)
    if access == "map":
        assert check_dataset([f"root={root}"]) == ExitCode.FAILED
        assert caplog.text.count("checksum differs") == len(shards)
