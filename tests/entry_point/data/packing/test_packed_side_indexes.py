"""The side indexes at the end of packed shards make decoding faster and change no pixel."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from entry_point.config.data_config import Access
from entry_point.config.packing_config import OptimizeConfig
from entry_point.data.batch import Batch
from entry_point.data.packing.encode import encode_file
from entry_point.data.sources.shards import PackedSource
from entry_point.job.program import ExitCode
from tests.commands import check_dataset
from tests.entry_point.data.engines.every_engine import Way
from tests.entry_point.data.loaders import epoch_of, images_of, loader_of, source_of
from tests.entry_point.data.packing.pack_command import index, side_indexes


def test_a_file_with_restart_markers_is_kept_as_it_is(photo_folder: Path, tmp_path: Path) -> None:
    photo = Image.open(photo_folder / "train/cat/000.jpg")
    photo.save(tmp_path / "marked.jpg", quality=90, restart_marker_blocks=7)
    original = (tmp_path / "marked.jpg").read_bytes()
    encoded = encode_file(original, OptimizeConfig())
    assert encoded.data == original and not encoded.index
    assert encoded.how == "kept" and "it has restart markers" in encoded.note


def _images(root: Path, engine: Way = "threads", access: Access = "map") -> Tensor:
    return _in_order(epoch_of(loader_of(root, engine, access=access)))


def _in_order(batches: list[Batch]) -> Tensor:
    """The images of an epoch by their number: the order depends on the access."""
    order = torch.cat([batch.indices for batch in batches]).argsort()
    return images_of(batches)[order]


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
    rounding = 1 if engine == "workers" else 0  # torch resizes there
    assert (images.int() - plain.int()).abs().max() <= rounding


@pytest.mark.parametrize("held", [True, False])
def test_a_stream_gives_the_same_indexes_from_memory_and_from_the_file(
    packed: Path, held: bool
) -> None:
    source = source_of(packed, access="stream")
    assert hasattr(source, "hold") and hasattr(source, "indexes")
    with ThreadPoolExecutor(1) as reader:
        if held:
            source.hold(reader, [0, 2])
        found = source.indexes(np.arange(len(source))) or []
    expected = side_indexes(packed, "train")
    assert len(found) == 48
    for i, one in enumerate(found):
        assert one.numpy().tobytes() == expected[source.key(i).split(": ")[1]]


@pytest.mark.parametrize("access", ["map", "stream"])
@pytest.mark.parametrize("damage", ["shifted", "wrong bits"])
def test_damaged_side_indexes_cost_no_pixel_and_are_found_by_a_check(
    plain: Tensor, shards: Path, damage: str, access: Access, caplog: pytest.LogCaptureFixture
) -> None:
    rows, files = index(shards), sorted((shards / "train").glob("*.tar"))
    for number, file in enumerate(files):
        data, own = np.fromfile(file, np.uint8), rows["shard"] == number
        start = int(rows["side_offset"][own].min())
        indexes = data[start : start + int(rows["side_length"][own].sum())]
        if damage == "shifted":
            indexes[:] = np.roll(indexes, 1000)
        else:
            indexes[::97] ^= 8
        data.tofile(file)
    assert torch.equal(_images(shards, access=access), plain)
    if access == "map":
        assert check_dataset([f"root={shards}"]) == ExitCode.FAILED
        assert caplog.text.count("checksum differs") == len(files)
