"""`make dataset output_format=index`: side indexes beside files that stay as they are."""

from __future__ import annotations

import io
import logging
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from custom_op import index_jpeg
from entry_point.data import errors
from entry_point.data.errors import DataError
from entry_point.data.sources import side_index_store
from entry_point.data.sources.side_index_store import (
    FOLDER_INDEX,
    OLD_FOLDER_INDEX,
    write_folder_index,
)
from entry_point.data.sources.source import Source
from entry_point.job.program import ExitCode
from tests.commands import check_dataset, optimize
from tests.entry_point.data.loaders import epoch_of, images_of, loader_of, source_of
from tests.entry_point.data.packing.pack_command import contents, index_bytes
from tests.photographs import write_photo_folder


@pytest.fixture(autouse=True)
def no_line_was_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_logged", {})
    monkeypatch.setattr(side_index_store, "HOST_FOLDER", tmp_path / "cache")


def _index(source: Path, *options: str) -> int:
    return optimize([f"source={source}", "output_format=index", *options])


def _expected(source: Source) -> list[bytes]:
    return [index_jpeg(source.read(i)).numpy().tobytes() for i in range(len(source))]


def _images(root: Path, **data: Any) -> Tensor:
    return images_of(epoch_of(loader_of(root, **data)))


def test_an_indexed_folder_keeps_its_files_and_every_jpeg_finds_its_index(photos: Path) -> None:
    before, plain = contents(photos), _images(photos)
    for _again in range(2):
        assert _index(photos) == ExitCode.FINISHED
    after = contents(photos)
    added = set(after) - set(before)
    assert added == {FOLDER_INDEX}
    assert {name: after[name] for name in before} == before
    source = source_of(photos)
    assert index_bytes(source) == _expected(source) and sum(map(bool, index_bytes(source))) > 30
    assert torch.equal(_images(photos), plain)


def test_a_split_by_fraction_and_a_table_find_the_same_index(photos: Path) -> None:
    shutil.rmtree(photos / "val")
    assert _index(photos) == 0
    source = source_of(photos, val_fraction=0.25)
    assert index_bytes(source) == _expected(source)
    table = _table_of(photos)
    source = source_of(table, val_fraction=0.25)
    assert any(index_bytes(source)) and index_bytes(source) == _expected(source)
    (photos / FOLDER_INDEX).unlink()
    assert _index(table) == 0
    assert index_bytes(source_of(table, val_fraction=0.25)) == _expected(source)


def test_tables_of_a_folder_find_their_index_beside_the_images(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a folder that is named from where the command runs."""
    header, *rows = _table_of(photos).read_text().splitlines()
    (photos / "labels.csv").unlink()
    for folder in (photos, tmp_path):
        for split in ("train", "val"):
            of_split = [row for row in rows if row.startswith(split)]
            (folder / f"{split}.csv").write_text("\n".join([header, *of_split]))
    monkeypatch.chdir(tmp_path)
    data: dict[str, Any]
    for source, data in ((Path(), {"images": "photos"}), (Path("photos"), {})):
        kept = {"format": "manifest", **data}
        assert _index(source, *(f"data.{key}={value}" for key, value in kept.items())) == 0
        opened = source_of(source, **kept)
        assert any(index_bytes(opened)) and index_bytes(opened) == _expected(opened)
        (photos / FOLDER_INDEX).unlink()


def _table_of(photos: Path) -> Path:
    files = sorted(photos.rglob("*.jpg"))
    rows = [f"{file.relative_to(photos)},{file.parent.name}" for file in files]
    (photos / "labels.csv").write_text("\n".join(["path,label", *rows]))
    return photos / "labels.csv"


def test_an_index_in_another_folder_serves_images_that_cannot_be_written(
    photos: Path, tmp_path: Path
) -> None:
    before = contents(photos)
    assert _index(photos, f"output={tmp_path / 'indexes'}") == 0
    assert contents(photos) == before
    source = source_of(photos, index_root=str(tmp_path / "indexes"))
    assert index_bytes(source) == _expected(source)
    with pytest.raises(DataError, match=r"holds no jpeg-index\.sqlite; make it with"):
        source_of(photos, index_root=str(tmp_path))


@pytest.mark.skipif(not Path("/proc/1").is_dir(), reason="needs Linux")
def test_a_folder_that_cannot_be_written_is_named_with_the_way_out(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _index(photos, "output=/proc/self") == ExitCode.USAGE
    error = capsys.readouterr().err
    assert "output=/proc/self cannot be written" in error
    assert "train with data.index_root=FOLDER" in error


def test_an_index_that_does_not_fit_on_the_disk_is_one_line_and_leaves_nothing_behind(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit of SQLite's stands for a full disk. The next run makes the index."""
    before, connect = contents(photos), sqlite3.connect

    def connect_to_few_pages(*arguments: Any, **named: Any) -> sqlite3.Connection:
        database = connect(*arguments, **named)
        database.execute("PRAGMA max_page_count=2")
        return database

    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", connect_to_few_pages)
        assert _index(photos) == ExitCode.FAILED
    file, advice = photos / "jpeg-index.sqlite", "free up space and run the same command again"
    error = capsys.readouterr().err
    assert f"optimize: {file}: database or disk is full: {advice}\n" in error
    assert not file.exists() and not any(index_bytes(source_of(photos)))
    assert _index(photos) == ExitCode.FINISHED
    assert {*contents(photos)} - {*before} == {FOLDER_INDEX}


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Without other lines, which programs that ran in this process before have turned on."""
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_changed_and_new_files_decode_without_an_index_to_the_same_pixels(
    photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The operator notices the changed ones, also where the size is the same."""
    assert _index(photos, f"output={tmp_path}") == 0
    cat = photos / "train/cat"
    photo = Image.open(cat / "000.jpg").convert("RGB")
    photo.save(cat / "001.jpg", quality=50)
    photo.save(cat / "new.jpg")
    _replace_by_same_size(cat / "002.jpg", photo)
    with caplog.at_level(logging.WARNING):
        images = _images(photos, index_root=str(tmp_path))
    (opened,) = warnings_in(caplog)
    assert "lacks 1 of 49 images: images without a side index decode slower" in opened
    assert torch.equal(_images(photos), images)


def _replace_by_same_size(file: Path, photo: Image.Image) -> None:
    content, size = io.BytesIO(), file.stat().st_size
    photo.save(content, "JPEG", quality=10)
    data = content.getvalue()
    comment = b"\xff\xfe" + (size - len(data) - 2).to_bytes(2, "big")
    file.write_bytes(data[:2] + comment + bytes(size - len(data) - 4) + data[2:])
    assert file.stat().st_size == size


def _database(file: Path, *commands: str) -> None:
    database = sqlite3.connect(file)
    for command in commands:
        database.execute(command)
    database.commit()
    database.close()


def _make_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _make_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _forge_table(file: Path) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
    view = f"CREATE VIEW side_indexes AS {endless} SELECT i AS path, x'00' AS content FROM n"
    _database(file, "DROP TABLE side_indexes", view)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-7]),
    "empty": lambda file: file.write_bytes(b""),
    "no database": lambda file: file.write_bytes(b"no more" * 1000),
    "a folder": _make_folder,
    "a pipe": _make_pipe,
    "an endless table": _forge_table,
    "forged hashes": lambda file: _database(file, "UPDATE paths SET hashes = x'0102'"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_folder_index_is_one_warning_and_no_error(
    photos: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert _index(photos) == 0
    DAMAGE[damage](photos / FOLDER_INDEX)
    with caplog.at_level(logging.WARNING):
        assert not any(index_bytes(source_of(photos)))
    (line,) = warnings_in(caplog)
    assert FOLDER_INDEX in line and "images without a side index decode slower" in line
    assert 'make dataset ARGS="source=FOLDER output_format=index"' in line


@pytest.mark.parametrize("content", ["'text'", "7", "1e300", "x''", "zeroblob(100000)"])
def test_false_indexes_in_a_folder_index_cost_no_pixel(photos: Path, content: str) -> None:
    plain = _images(photos)
    assert _index(photos) == 0
    _database(photos / FOLDER_INDEX, f"UPDATE side_indexes SET content = {content}")
    assert torch.equal(_images(photos), plain)


def test_damaged_pages_of_a_folder_index_cost_no_pixel_and_one_warning(
    photos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = _images(photos)
    assert _index(photos) == 0
    data = np.fromfile(photos / FOLDER_INDEX, np.uint8)
    data[20_000:] ^= 0x55
    data.tofile(photos / FOLDER_INDEX)
    assert torch.equal(_images(photos), plain)
    (line,) = warnings_in(caplog)
    assert FOLDER_INDEX in line


def test_the_index_of_version_1_is_named_with_the_command_that_makes_the_new_one(
    photos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (photos / OLD_FOLDER_INDEX).write_bytes(b"of version 1")
    with caplog.at_level(logging.WARNING):
        for _split in range(2):
            source_of(photos)
    (line,) = warnings_in(caplog)
    assert f"{OLD_FOLDER_INDEX} is of version 1 and not read" in line
    (arguments,) = re.findall('`make dataset ARGS="(.*)"`', line)
    with pytest.raises(DataError, match=rf"{OLD_FOLDER_INDEX} is of version 1.*make it with"):
        source_of(photos, index_root=str(photos))
    assert optimize(shlex.split(arguments)) == 0
    caplog.clear()
    source = source_of(photos)
    assert index_bytes(source) == _expected(source) and not warnings_in(caplog)


def test_a_folder_index_takes_little_more_than_its_indexes(tmp_path: Path) -> None:
    """1.25 % of the images' bytes is what a side index may take at most."""
    for size in (300, 700, 1500, 1700, 2500, 5000, 33_000):
        indexes = [os.urandom(size + size * (i % 11 - 5) // 10) for i in range(2000)]
        rows = [(f"{tmp_path}/train/{i}.jpg", index) for i, index in enumerate(indexes)]
        write_folder_index(tmp_path / FOLDER_INDEX, tmp_path, rows)
        assert (tmp_path / FOLDER_INDEX).stat().st_size < 1.16 * sum(map(len, indexes))


def test_a_folder_index_takes_at_most_1_25_percent_of_its_photographs(tmp_path: Path) -> None:
    photos = write_photo_folder(tmp_path / "photos", train=8, val=0)
    for file in [*photos.rglob("*.jpg")]:
        for number in range(4):
            file.with_name(f"{number}-{file.name}").hardlink_to(file)
    assert _index(photos) == 0
    images = sum(file.stat().st_size for file in photos.rglob("*.jpg"))
    assert (photos / FOLDER_INDEX).stat().st_size < 0.0125 * images


@pytest.fixture
def read_only(photos: Path, tmp_path: Path) -> Iterator[Path]:
    """The photographs with their index, mounted so that nothing can be written."""
    assert _index(photos) == 0
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    bind = ["mount", "--bind", str(photos), str(mounted)]
    if os.getuid() or subprocess.run(bind, check=False, capture_output=True).returncode:
        pytest.skip("mounts need root")
    subprocess.run(["mount", "-o", "remount,ro,bind", str(mounted)], check=True)
    yield mounted
    subprocess.run(["umount", "--lazy", str(mounted)], check=True)


def test_a_folder_index_is_read_from_a_disk_that_is_read_only(read_only: Path) -> None:
    with pytest.raises(OSError, match="Read-only"):
        (read_only / "new").touch()
    source = source_of(read_only)
    assert index_bytes(source) == _expected(source)


def test_a_folder_index_is_read_without_locks(photos: Path) -> None:
    """As from a disk that has none: a lock that all other readers wait for delays nothing."""
    assert _index(photos) == 0
    database = sqlite3.connect(photos / FOLDER_INDEX)
    database.execute("BEGIN EXCLUSIVE")
    source = source_of(photos)
    assert index_bytes(source) == _expected(source)
    database.close()


def _check_dataset(caplog: pytest.LogCaptureFixture, *arguments: str) -> tuple[int, str]:
    caplog.clear()
    with caplog.at_level("INFO"):
        code = check_dataset(arguments)
    return code, caplog.text


def test_check_dataset_finds_the_indexes_of_files_that_have_changed(
    photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output, table = tmp_path / "elsewhere", _table_of(photos)
    assert _index(photos, f"output={output}") == 0
    assert _check_dataset(caplog, f"root={photos}", f"index_root={output}")[0] == 0
    small, large = sorted(photos.rglob("*.jpg"), key=lambda file: file.stat().st_size)[:2]
    large.write_bytes(small.read_bytes().ljust(large.stat().st_size, b"\0"))
    for root in (photos, table):
        code, log = _check_dataset(caplog, f"root={root}", f"index_root={output}")
        assert code == ExitCode.FAILED
        assert f"{large}: its side index does not match the file" in log
        assert log.count("its side index") == 1


def test_check_dataset_lists_a_damaged_folder_index_and_reads_the_rest(
    photos: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _index(photos) == 0
    file = photos / FOLDER_INDEX
    file.write_bytes(file.read_bytes()[:-1])
    code, log = _check_dataset(caplog, f"root={photos}")
    assert code == ExitCode.FAILED and "jpeg-index.sqlite has" in log and "problems: 1" in log
    assert check_dataset([f"root={photos}", f"index_root={tmp_path / 'none'}"]) == ExitCode.USAGE
    assert "none: holds no jpeg-index.sqlite" in capsys.readouterr().err
