"""Datasets whose index, description or shards lie: each lie is named, and none is a traceback."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from entry_point.config.data_config import Access, DataConfig
from entry_point.data.errors import DataError
from entry_point.data.loader import open_source
from entry_point.job.program import ExitCode
from tests.commands import check_dataset
from tests.entry_point.data.packing.pack_command import copy, index

MOST = 2**63 - 1


@pytest.fixture
def shards(packed: Path, tmp_path: Path) -> Path:
    return copy(packed, tmp_path / "shards")


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


def _check(root: Path, caplog: pytest.LogCaptureFixture) -> str:
    with caplog.at_level("INFO"):
        assert check_dataset([f"root={root}"]) == ExitCode.FAILED
    return caplog.text


def _open(root: Path, access: Access) -> None:
    open_source(DataConfig(format="shards", root=str(root), access=access), "val", root)


LIES = [
    ("length", -5, "length=-5 in the index"),
    ("length", MOST, f"length={MOST} in the index"),
    ("offset", -512, "offset=-512 in the index"),
    ("offset", MOST - 100, f"offset={MOST - 100} in the index"),
    ("shard", 7, "shard=7 in the index"),
    ("shard", -1, "shard=-1 in the index"),
    ("height", 0, "height=0 in the index"),
    ("width", -3, "width=-3 in the index"),
    ("orientation", 9, "orientation=9 in the index"),
    ("side_offset", -1, "side_offset=-1 in the index"),
    ("side_offset", MOST, f"side_offset={MOST} in the index"),
    ("side_length", -(2**31), f"side_length={-(2**31)} in the index"),
]


@pytest.mark.parametrize("access", ["map", "stream"])
@pytest.mark.parametrize(("column", "value", "message"), LIES)
def test_impossible_values_of_the_index_are_named(
    shards: Path,
    column: str,
    value: int,
    message: str,
    access: Access,
    caplog: pytest.LogCaptureFixture,
) -> None:
    key = _lie(shards, column, value)
    with pytest.raises(DataError, match=f"{key}: {message}: must be .*: pack the dataset again"):
        _open(shards, access)
    log = _check(shards, caplog)
    assert f"{key}: {message}" in log and "images checked" in log


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("length", "lies outside its shard"),
        ("side_length", "its side index lies outside its shard"),
    ],
)
def test_sample_that_ends_outside_its_shard_is_named(
    shards: Path, column: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    length = (shards / "val/shard-000000.tar").stat().st_size
    key = _lie(shards, column, length)
    with pytest.raises(DataError, match=f"{key}: {message}"):
        _open(shards, "map")
    assert f"{key}: {message}" in _check(shards, caplog)


@pytest.mark.parametrize(("column", "value"), [("height", 99), ("width", 98), ("orientation", 7)])
def test_size_or_orientation_that_differs_from_the_image_is_damage(
    shards: Path,
    column: str,
    value: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    key = _lie(shards, column, value)
    log = _check(shards, caplog)
    assert f"{key}: its size or orientation differs from the index" in log
    assert "72 images checked, problems: 1" in log


HEADERS: list[Callable[[dict[str, Any]], object]] = [
    lambda header: header.clear(),
    lambda header: header.pop("offset"),
    lambda header: header["offset"].update(dtype="I32"),
    lambda header: header["offset"].update(dtype="BF7"),
    lambda header: header["offset"].update(data_offsets=[-8, 16]),
    lambda header: header["offset"].update(data_offsets=[0, 2**60]),
    lambda header: header["offset"].update(data_offsets="no"),
    lambda header: header["offset"].update(shape=[3]),
    lambda header: header["offset"].update(shape=None),
    lambda header: header["offset"].update(shape=[]),
    lambda header: header["offset"].update(shape=[24, 1]),
    lambda header: header["side_length"].update(data_offsets=[0, 2**60]),
    lambda header: header["key_end"].update(data_offsets=[0, -(2**60)]),
    lambda header: header.update(offset=header["side_offset"] | {"shape": [4, 6]}),
    lambda header: header.update(label=header["key"]),
    lambda header: header["side_offset"].update(header["offset"]),
    lambda header: header["side_length"].update(header["length"] | {"dtype": "I32", "shape": [48]}),
]


@pytest.mark.parametrize("change", HEADERS)
def test_false_header_of_an_index_with_a_valid_checksum_is_named(
    shards: Path, change: Callable[[dict[str, Any]], object], caplog: pytest.LogCaptureFixture
) -> None:
    _lie_in_header(shards, change)
    for access in ("map", "stream"):
        with pytest.raises(DataError, match=r"val/index\.safetensors is damaged"):
            _open(shards, access)
    log = _check(shards, caplog)
    assert "val/index.safetensors is damaged" in log and "48 images checked" in log


@pytest.mark.parametrize("content", [b"", b"no more", bytes(5000), b"{" * 5000])
def test_file_that_is_no_index_is_named(
    shards: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (shards / "val/index.safetensors").write_bytes(content)
    with pytest.raises(DataError, match=r"val/index\.safetensors (is damaged)"):
        _open(shards, "map")
    assert "48 images checked, problems: 1" in _check(shards, caplog)


@pytest.mark.parametrize("ends", [[-1] * 24, [2**62] * 24, list(range(24, 0, -1))])
def test_false_places_of_keys_end_no_process(shards: Path, ends: list[int]) -> None:
    file = shards / "val/index.safetensors"
    save_file(load_file(file) | {"key_end": np.array(ends)}, file)
    _set_checksum(shards)
    source = open_source(DataConfig(format="shards", root=str(shards)), "val", shards)
    assert all(isinstance(source.key(i), str) for i in range(len(source)))


DESCRIPTIONS: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda c: c["splits"].update({"../../x": c["splits"]["val"]}), r"'../../x': .* pattern"),
    (lambda c: c["splits"]["val"]["shards"][0].update(file="../secret.tar"), r"'../secret.tar': "),
    (lambda c: c["splits"]["val"]["shards"][0].update(file="/etc/x.tar"), r"'/etc/x.tar': "),
    (lambda c: c["splits"]["val"]["shards"][0].update(file="\0.tar"), r"'\\x00.tar': "),
    (lambda c: c["splits"]["val"]["shards"][0].update(file=5), r"shards.0.file=5: .* string"),
    (lambda c: c["splits"]["val"]["shards"][0].update(samples=-1), r"samples=-1: .* 0"),
    (lambda c: c["splits"]["val"]["shards"][0].update(samples=10**15), "has 24 rows, but"),
    (lambda c: c["splits"]["val"]["shards"][0].update(bytes=2**70), f"bytes={2**70}: "),
    (lambda c: c["splits"]["val"]["shards"][0].update(bytes="9"), r"bytes='9': .* integer"),
    (lambda c: c.update(splits=[]), r"splits=\[\]: "),
    (lambda c: c.update(settings=[]), r"settings=\[\]: "),
    (lambda c: c.update(part=None), "part=None: "),
    (lambda c: c.update(part={"number": 1, "count": 10**9}), "must be from 1 to at most 9999"),
    (lambda c: c.update(classes=5), "classes=5: .* array"),
    (lambda c: c.update(classes=[1]), "classes.0=1: .* string"),
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
