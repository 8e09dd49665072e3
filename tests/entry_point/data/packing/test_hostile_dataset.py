"""Datasets whose index, description or shards lie: each lie is named, and none is a traceback."""

import io
import json
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from entry_point.check_dataset import main as check_dataset
from entry_point.config.data_config import Access, DataConfig
from entry_point.contract import exit_codes
from entry_point.contract.printable import printable
from entry_point.data.errors import DataError
from entry_point.data.loader import open_source
from entry_point.optimize import main as optimize
from tests.entry_point.data.packing.pack_command import copy, pack

MOST = 2**63 - 1


@pytest.fixture
def shards(packed: Path, tmp_path: Path) -> Path:
    return copy(packed, tmp_path / "shards")


@pytest.fixture
def files(photo_folder: Path, tmp_path: Path) -> Path:
    assert pack(photo_folder, tmp_path / "files", "output_format=folder") == 0
    return tmp_path / "files"


def _describe(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((root / "dataset.json").read_text())
    change(content)
    (root / "dataset.json").write_text(json.dumps(content))


def _set_checksum(root: Path) -> None:
    checksum = zlib.crc32((root / "val/index.parquet").read_bytes())
    _describe(root, lambda content: content["splits"]["val"].update(index_crc32=checksum))


def _lie(root: Path, column: str, value: object) -> str:
    """Change the first row of the val index, and its checksum; returns the row's key."""
    table = pq.read_table(root / "val/index.parquet")
    place = table.schema.get_field_index(column)
    values = [value, *table[column].to_pylist()[1:]]
    table = table.set_column(place, table.schema.field(place), pa.array(values, table[place].type))
    pq.write_table(table, root / "val/index.parquet")
    _set_checksum(root)
    return str(table["key"][0])


def _check(root: Path, caplog: pytest.LogCaptureFixture) -> str:
    with caplog.at_level("INFO"):
        assert check_dataset([f"root={root}"]) == exit_codes.FAILED
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


def test_sample_that_ends_outside_its_shard_is_named(
    shards: Path, caplog: pytest.LogCaptureFixture
) -> None:
    length = (shards / "val/shard-00-000000.tar").stat().st_size
    key = _lie(shards, "length", length)
    with pytest.raises(DataError, match=f"{key}: lies outside its shard"):
        _open(shards, "map")
    assert f"{key}: lies outside its shard" in _check(shards, caplog)


@pytest.mark.parametrize("dataset", ["shards", "files"])
@pytest.mark.parametrize(("column", "value"), [("height", 99), ("width", 98), ("orientation", 7)])
def test_size_or_orientation_that_differs_from_the_image_is_damage(
    dataset: str,
    column: str,
    value: int,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    root = request.getfixturevalue(dataset)
    key = _lie(root, column, value)
    log = _check(root, caplog)
    assert f"{key}.jpg: its size or orientation differs from the index" in log
    assert "72 images checked, problems: 1" in log


def test_key_that_leads_out_of_the_dataset_is_not_read(
    files: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for key in ("../../outside/000", f"{files.parent}/outside", "cat/\0"):
        _lie(files, "key", key)
        assert f"{printable(key)}.jpg: leads out of the dataset" in _check(files, caplog)


@pytest.mark.parametrize("content", [b"PAR1 no more", b"", b"PAR1" + bytes(40) + b"PAR1"])
def test_broken_index_with_a_valid_checksum_is_named(
    shards: Path,
    content: bytes,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (shards / "val/index.parquet").write_bytes(content)
    _set_checksum(shards)
    with pytest.raises(DataError, match=r"val/index\.parquet is damaged"):
        _open(shards, "map")
    log = _check(shards, caplog)
    assert "val/index.parquet is damaged" in log and "48 images checked, problems: 1" in log
    assert "panicked" not in capfd.readouterr().err  # what Rust prints


def test_index_with_other_columns_is_named(shards: Path) -> None:
    pq.write_table(pa.table({"key": ["a/b"] * 24}), shards / "val/index.parquet")
    _set_checksum(shards)
    with pytest.raises(DataError, match="it has other columns"):
        _open(shards, "map")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE])
@pytest.mark.parametrize("suffix", ["jpg", "cls"])
def test_shard_member_that_is_not_a_file_is_damage(
    shards: Path, kind: bytes, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    shard = shards / "val/shard-00-000000.tar"
    with tarfile.open(shard) as tar:
        members = [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
    first = next(member for member, _ in members if member.name.endswith(suffix))
    with tarfile.open(shard, "w") as tar:
        for member, data in members:
            if member is first:
                member.type, member.linkname = kind, "../../nowhere"
            tar.addfile(member, io.BytesIO(data))
    size = shard.stat().st_size

    def fit(content: dict[str, Any]) -> None:
        content["splits"]["val"]["shards"][0]["bytes"] = size

    _describe(shards, fit)
    assert f"{first.name[:-4]}.jpg: not in the shard" in _check(shards, caplog)


DESCRIPTIONS: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda c: c["splits"].update({"../../x": c["splits"]["val"]}), r"split '../../x': must be"),
    (lambda c: c["splits"]["val"]["shards"][0].update(file="../secret.tar"), "shard '../secret"),
    (lambda c: c["splits"]["val"]["shards"][0].update(file="/etc/x.tar"), "shard '/etc/x.tar'"),
    (lambda c: c["splits"]["val"]["shards"][0].update(file="\0.tar"), r"shard '\\x00.tar'"),
    (lambda c: c["splits"]["val"]["shards"][0].update(file=5), "is damaged"),
    (lambda c: c["splits"]["val"]["shards"][0].update(samples=-1), "-1 bytes or samples"),
    (lambda c: c["splits"]["val"]["shards"][0].update(samples=10**15), "no memory for"),
    (lambda c: c["splits"]["val"]["shards"][0].update(bytes=2**70), "bytes or samples"),
    (lambda c: c["splits"]["val"]["shards"][0].update(bytes="9"), "'9' bytes or samples"),
    (lambda c: c.update(splits=[]), "is damaged"),
    (lambda c: c.update(classes=5), "classes 5: must be a list"),
    (lambda c: c.update(classes=[1]), "1: must be a string"),
    (lambda c: c.update(format="/etc/passwd"), "format '/etc/passwd': must be shards or folder"),
]


@pytest.mark.parametrize(("change", "message"), DESCRIPTIONS)
def test_description_that_leads_out_of_the_dataset_or_makes_no_sense_is_named(
    shards: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    _describe(shards, change)
    with pytest.raises(DataError, match=message):
        _open(shards, "map")


@pytest.mark.parametrize("change", [change for change, _ in DESCRIPTIONS[:3]])
def test_merge_neither_reads_nor_writes_outside_the_parts_and_the_output(
    shards: Path,
    change: Callable[[dict[str, Any]], object],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (shards / "secret.tar").write_bytes((shards / "val/shard-00-000000.tar").read_bytes())
    _describe(shards, change)
    before = sorted(tmp_path.rglob("*"))
    output = tmp_path / "deep/er/all"
    assert optimize([f"merge=[{shards}]", f"output={output}"]) == exit_codes.USAGE
    assert "dataset.json is damaged" in capsys.readouterr().err
    left = set(tmp_path.rglob("*")) - set(before)
    assert not [path for path in left if path.suffix in (".tar", ".parquet")]
