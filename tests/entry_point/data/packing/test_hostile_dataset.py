"""Datasets whose index, description or shards lie: each lie is named, and none is a traceback."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from entry_point.config.data_config import Access
from entry_point.data.errors import DataError
from entry_point.data.sources.source import Source
from tests.entry_point.data.loaders import source_of
from tests.entry_point.data.packing.pack_command import damage_log, index

MOST = 2**63 - 1
ACCESSES: tuple[Access, ...] = ("map", "stream")


def _describe(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((root / "dataset.json").read_text())
    change(content)
    (root / "dataset.json").write_text(json.dumps(content))


def _set_checksum(root: Path) -> None:
    """That of the val index."""
    checksum = zlib.crc32((root / "val/index.safetensors").read_bytes())
    _describe(root, lambda content: content["splits"]["val"].update(table_crc32=checksum))


def _lie(root: Path, column: str, value: Any) -> str:
    """Change the first row of the val index, and its checksum; returns the row's key."""
    file, key = root / "val/index.safetensors", index(root, "val")["key"][0]
    columns = load_file(file)
    columns[column][0] = value
    save_file(columns, file)
    _set_checksum(root)
    return str(key)


def _lie_in_header(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    file = root / "val/index.safetensors"
    data = file.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])
    _set_checksum(root)


def _open(root: Path, access: Access) -> Source:
    return source_of(root, "val", format="shards", access=access)


LIES = [
    ("length", -5, "length=-5 in the index: must be"),
    ("length", MOST, f"length={MOST} in the index: must be"),
    ("length", None, "lies outside its shard"),
    ("offset", -512, "offset=-512 in the index: must be"),
    ("offset", MOST - 100, f"offset={MOST - 100} in the index: must be"),
    ("shard", 7, "shard=7 in the index: must be"),
    ("shard", -1, "shard=-1 in the index: must be"),
    ("height", 0, "height=0 in the index: must be"),
    ("width", -3, "width=-3 in the index: must be"),
    ("orientation", 9, "orientation=9 in the index: must be"),
    ("side_offset", -1, "side_offset=-1 in the index: must be"),
    ("side_offset", MOST, f"side_offset={MOST} in the index: must be"),
    ("side_length", -(2**31), f"side_length={-(2**31)} in the index: must be"),
    ("side_length", None, "its side index lies outside its shard"),
]


@pytest.mark.parametrize(("column", "value", "message"), LIES)
def test_impossible_values_of_the_index_are_named(
    shards: Path, column: str, value: int | None, message: str
) -> None:
    """None stands for the size of the shard."""
    size = (shards / "val/shard-000000.tar").stat().st_size
    key = _lie(shards, column, size if value is None else value)
    for access in ACCESSES:
        with pytest.raises(DataError, match=f"{key}: {message}.*: pack the dataset again"):
            _open(shards, access)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("length", -5, "length=-5 in the index: must be"),
        ("height", 99, "its size or orientation differs from the index"),
        ("width", 98, "its size or orientation differs from the index"),
        ("orientation", 7, "its size or orientation differs from the index"),
    ],
)
def test_a_check_names_the_image_of_a_wrong_row(
    shards: Path, column: str, value: int, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    key = _lie(shards, column, value)
    log = damage_log(shards, caplog)
    assert f"{key}: {message}" in log and "images checked" in log


HEADERS: list[Callable[[dict[str, Any]], object]] = [
    lambda header: header.clear(),
    lambda header: header.pop("offset"),
    lambda header: header["offset"].update(dtype="I32"),
    lambda header: header["offset"].update(data_offsets=[0, 2**60]),
    lambda header: header["offset"].update(shape=[3]),
    lambda header: header["offset"].update(shape=[]),
    lambda header: header["offset"].update(shape=[24, 1]),
    lambda header: header.update(label=header["key"]),
    lambda header: header["side_offset"].update(header["offset"]),
    lambda header: header["side_length"].update(header["length"] | {"dtype": "I32", "shape": [48]}),
]


@pytest.mark.parametrize("change", HEADERS)
def test_false_header_of_an_index_with_a_valid_checksum_is_named(
    shards: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    _lie_in_header(shards, change)
    for access in ACCESSES:
        with pytest.raises(DataError, match=r"val/index\.safetensors is damaged"):
            _open(shards, access)


@pytest.mark.parametrize("content", [b"", b"no more"])
def test_file_that_is_no_index_is_named(
    shards: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (shards / "val/index.safetensors").write_bytes(content)
    with pytest.raises(DataError, match=r"val/index\.safetensors is damaged"):
        _open(shards, "map")
    assert "48 images checked, problems: 1" in damage_log(shards, caplog)


@pytest.mark.parametrize("ends", [[-1] * 24, [2**62] * 24, list(range(24, 0, -1))])
def test_false_places_of_keys_end_no_process(shards: Path, ends: list[int]) -> None:
    file = shards / "val/index.safetensors"
    save_file(load_file(file) | {"key_end": np.array(ends)}, file)
    _set_checksum(shards)
    source = _open(shards, "map")
    assert all(isinstance(source.key(i), str) for i in range(len(source)))


def _of_shard(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["splits"]["val"]["shards"][0].update(changes)


DESCRIPTIONS: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda c: c.clear(), r"dataset.json is damaged \(classes={}: Field required"),
    (lambda c: c["splits"].update({"../../x": c["splits"]["val"]}), r"'../../x': .* pattern"),
    (_of_shard(file="../secret.tar"), r"'../secret.tar': "),
    (_of_shard(file="/etc/x.tar"), r"'/etc/x.tar': "),
    (_of_shard(file="\0.tar"), r"'\\x00.tar': "),
    (_of_shard(samples=-1), r"samples=-1: .* 0"),
    (_of_shard(samples=10**15), "has 24 rows, but"),
    (_of_shard(bytes=2**70), f"bytes={2**70}: "),
    (lambda c: c.update(part={"number": 1, "count": 10**9}), "must be from 1 to at most 9999"),
    (lambda c: c.update(classes=["a\nb"]), r"classes.0='a\\nb': .* without control characters"),
    (lambda c: c.update(version=99), "version=99: Input should be 1 or 2"),
]


@pytest.mark.parametrize(("change", "message"), DESCRIPTIONS)
def test_description_that_leads_out_of_the_dataset_or_makes_no_sense_is_named(
    shards: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    _describe(shards, change)
    with pytest.raises(DataError, match=message):
        _open(shards, "map")


def test_a_description_that_is_cut_off_is_named(shards: Path) -> None:
    file = shards / "dataset.json"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"dataset.json is damaged \(Invalid JSON"):
        _open(shards, "map")
