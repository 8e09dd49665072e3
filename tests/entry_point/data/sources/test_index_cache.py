"""Training on plain files makes their side indexes while it decodes: same pixels, sooner."""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from custom_op import index_jpeg
from entry_point.data import errors
from entry_point.data.sources import side_index_store
from entry_point.data.sources.side_index_store import SideIndexStore
from entry_point.data.sources.source import RangeSource
from tests.entry_point.data.engines.every_engine import Way
from tests.entry_point.data.loaders import images_of, loader_of, source_of
from tests.entry_point.data.sources.class_folders import class_folder
from tests.forkserver import SERVER
from tests.photographs import write_photo_folder


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(side_index_store, "HOST_FOLDER", tmp_path / "cache")
    monkeypatch.setattr(errors, "_logged", {})
    return tmp_path / "cache"


def open_folder(root: Path) -> RangeSource:
    source = source_of(root)
    assert isinstance(source, RangeSource)
    return source


def epochs(root: Path, count: int, index: bool = True, way: Way = "threads") -> list[Tensor]:
    """The images of `count` epochs."""
    source = open_folder(root) if index else class_folder(root)
    with closing(loader_of(source, way, workers=2)) as loader:
        return [images_of(loader.epoch(epoch)) for epoch in range(count)]


def cached(root: Path) -> list[Tensor]:
    """The index of each file, as the next job finds it."""
    source = open_folder(root)
    return source.indexes(np.arange(len(source))) or []


def digest(root: Path) -> str:
    files = sorted(file for file in root.rglob("*") if file.is_file())
    content = b"".join(str(file).encode() + file.read_bytes() for file in files)
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("way", ["threads", "workers"])
def test_the_first_epoch_makes_the_indexes_that_the_second_one_uses(
    photo_folder: Path, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digest(photo_folder)
    expected = epochs(photo_folder, 3, index=False)
    assert not any(map(len, cached(photo_folder)))
    found = epochs(photo_folder, 3, way=way)
    for new, old in zip(found, expected, strict=True):
        assert torch.equal(new, old)
    assert digest(photo_folder) == before
    source = open_folder(photo_folder)
    indexes = [index_jpeg(source.read(i)) for i in range(len(source))]
    assert sum(map(len, indexes)) > 0
    for new, old in zip(cached(photo_folder), indexes, strict=True):
        assert torch.equal(new, old)
    made: list[int] = []
    monkeypatch.setattr(SideIndexStore, "keep", lambda *all: made.extend(map(len, all[2])))
    epochs(photo_folder, 1)
    assert made and not any(made)


def test_a_file_that_has_changed_gets_a_new_index_without_a_warning(
    photos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    epochs(photos, 1)
    source = open_folder(photos)
    first, other = Path(source.path(0)), Path(source.path(1))
    first.write_bytes(other.read_bytes())
    expected = epochs(photos, 1, index=False)
    assert torch.equal(epochs(photos, 1)[0], expected[0])
    assert torch.equal(cached(photos)[0], index_jpeg(source.read(1)))
    assert not warnings_of(caplog)


def test_one_line_says_where_the_indexes_are(
    photo_folder: Path, cache_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    epochs(photo_folder, 2)
    (made,) = (line for line in caplog.messages if "side ind" in line)
    assert str(cache_folder) in made
    caplog.clear()
    epochs(photo_folder, 1)
    (held,) = (line for line in caplog.messages if "side ind" in line)
    count = sum(map(bool, map(len, cached(photo_folder))))
    assert held.endswith(f"holds the side indexes of {count} images")


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def unwritable(folder: Path) -> None:
    folder.write_text("a file where the folder should be")


def of_others(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


@pytest.mark.parametrize("spoil", [unwritable, of_others, None])
def test_a_cache_that_cannot_be_used_costs_one_warning(
    photo_folder: Path,
    cache_folder: Path,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[Path], None] | None,
) -> None:
    expected = epochs(photo_folder, 2, index=spoil is None)
    if spoil:
        spoil(cache_folder)
    else:
        for file in cache_folder.iterdir():
            file.write_bytes(b"damaged" * 1000)
    for new, old in zip(epochs(photo_folder, 2), expected, strict=True):
        assert torch.equal(new, old)
    (warning,) = warnings_of(caplog)
    assert str(cache_folder) in warning and "to the same pixels" in warning
    assert spoil or "not a database" in warning


class Contended(sqlite3.Connection):
    """Answers as SQLite may where several connections open a new file at once."""

    refusals = 2

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if "journal_mode" in statement and Contended.refusals:
            Contended.refusals -= 1
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error
        return super().execute(statement, *values)


def test_a_new_database_that_others_open_too_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Contended))
    store = SideIndexStore(tmp_path / "index.sqlite", tmp_path, grows=True)
    key = store.key("1.jpg")
    store.keep([key], [torch.ones(9, dtype=torch.uint8)])
    assert len(store.find([key])[0]) == 9
    assert not Contended.refusals and "locked" not in caplog.text


def test_a_full_cache_keeps_what_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(side_index_store, "MOST_BYTES", 5 * 8192)
    photos = write_photo_folder(tmp_path / "photos")  # with larger indexes than small ones have
    expected = epochs(photos, 2, index=False)
    for new, old in zip(epochs(photos, 2), expected, strict=True):
        assert torch.equal(new, old)
    (warning,) = warnings_of(caplog)
    assert "full" in warning
    source = open_folder(photos)
    numbers = np.arange(len(source))
    source.keep_indexes(numbers, [index_jpeg(source.read(i)) for i in range(len(source))])
    assert 0 < sum(map(bool, map(len, source.indexes(numbers) or ()))) < len(source)


def rank(cache: Path, root: Path, count: int, together: Barrier) -> None:
    side_index_store.HOST_FOLDER = cache
    together.wait()
    epochs(root, count)


def test_ranks_of_a_host_share_the_cache_and_survive_a_kill(
    photo_folder: Path, cache_folder: Path
) -> None:
    together = SERVER.Barrier(2)
    ranks = [
        SERVER.Process(target=rank, args=(cache_folder, photo_folder, count, together))
        for count in (200, 2)
    ]
    for process in ranks:
        process.start()
    while not cache_folder.exists() or not any(map(len, cached(photo_folder))):
        time.sleep(0.05)
    ranks[0].kill()
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [-signal.SIGKILL, 0]
    source = open_folder(photo_folder)
    for i, index in enumerate(cached(photo_folder)):
        assert torch.equal(index, index_jpeg(source.read(i)))


def test_a_database_that_no_job_has_used_for_long_is_removed(
    photo_folder: Path, cache_folder: Path
) -> None:
    epochs(photo_folder, 1)
    old, kept = cache_folder / "old.sqlite", cache_folder / "new.sqlite"
    for file in (old, kept):
        sqlite3.connect(file).close()
    os.utime(old, (time.time() - 31 * 86400,) * 2)
    left_by_a_killed_job = cache_folder / "old.sqlite-wal"
    left_by_a_killed_job.touch()
    open_folder(photo_folder)
    assert kept.exists() and not old.exists() and not left_by_a_killed_job.exists()
