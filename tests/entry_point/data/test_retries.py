"""A disk that fails for a moment damages no image; one that stays away ends the program."""

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from entry_point.data import retries
from entry_point.data.errors import DataError
from entry_point.data.progress_bar import in_threads
from entry_point.data.retries import with_retries, without_retries
from entry_point.data.sources.file_bytes import read_bytes
from entry_point.data.sources.folder import is_folder
from entry_point.data.sources.source import FileSource, read_image
from entry_point.job.program import ExitCode, ReadError
from tests import commands
from tests.entry_point.data.engines.every_engine import Way
from tests.entry_point.data.loaders import loader_of, source_of
from tests.entry_point.data.sources.test_parquet import open_parquet, write_dataset
from tests.failing_disk import FOR_EVER, FOUND, TABLES, Disk, preloaded

READINGS = (
    *("a file", "a tar file", "a description", "an index", "a mapped shard", "a shard"),
    *("a streamed shard", "classes", "a mask", "side indexes"),
)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture(scope="module")
def found(photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What reading each kind of dataset from a disk that fails three times has given."""
    folder = tmp_path_factory.mktemp("failing")
    program = [sys.executable, "-m", "tests.failing_disk", str(photo_folder), str(folder)]
    environment = preloaded(folder)
    output = subprocess.run(program, env=environment, capture_output=True, check=False, text=True)
    assert output.returncode == 0, output.stderr
    content: dict[str, Any] = json.loads((folder / FOUND).read_text())
    return content


def test_what_a_disk_fails_three_times_is_read_the_same(found: dict[str, Any]) -> None:
    readings = {name: result for name, result in found.items() if name != TABLES}
    assert readings == {name: {"same": True, "left": 0} for name in READINGS}


@pytest.mark.parametrize("error", [errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.EMFILE])
def test_a_disk_that_stays_away_is_no_damage(error: int, disk: Disk, tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"content")
    disk.fails("a.jpg", error=error)
    with pytest.raises(
        ReadError, match=f"a.jpg: could not be read .{os.strerror(error)}"
    ) as raised:
        read_bytes(tmp_path / "a.jpg")
    assert not isinstance(raised.value, (OSError, DataError))
    assert FOR_EVER - disk.times == 4


@pytest.mark.parametrize("error", [errno.ENOENT, errno.EACCES, errno.EISDIR])
def test_what_an_error_says_of_the_file_is_not_tried_again(
    error: int, disk: Disk, tmp_path: Path
) -> None:
    disk.fails("a.jpg", error=error)
    with pytest.raises(OSError, match=os.strerror(error)):
        read_bytes(tmp_path / "a.jpg")
    assert FOR_EVER - disk.times == 1


@pytest.mark.parametrize("times", [3, FOR_EVER])
@pytest.mark.parametrize("folder", ["photos", "photos/train/cat"])
def test_a_folder_that_a_disk_fails_to_list_is_listed_again(
    folder: str, times: int, disk: Disk, photos: Path
) -> None:
    disk.fails(f"{photos.parent}/{folder}", times)
    if times == FOR_EVER:
        with pytest.raises(ReadError, match=f"{folder}: could not be read .Stale file handle"):
            source_of(photos)
    else:
        assert len(source_of(photos)) == 48 and disk.times == 0


def test_a_class_is_no_file_because_a_disk_fails_to_say_what_it_is(disk: Disk) -> None:
    """Some network disks tell a folder from a file only when asked about each."""

    class Entry:
        path = "photos/cat"

        def is_dir(self) -> bool:
            disk.touch(self.path)
            return True

    entry: Any = Entry()
    disk.fails("cat", times=3)
    assert is_folder(entry)
    disk.fails("cat")
    with pytest.raises(ReadError, match="photos/cat: could not be read"):
        is_folder(entry)
    disk.fails("cat", error=errno.ELOOP)
    assert not is_folder(entry)


def test_pauses_grow() -> None:
    assert retries.PAUSES == (0.5, 2, 8)


@pytest.mark.usefixtures("disk")
def test_an_own_source_is_read_again() -> None:
    class Remote(FileSource):
        tries = 0

        def read(self, index: int) -> Any:
            self.tries += 1
            raise TimeoutError(f"no answer for {index}")

    source = Remote(["http://host/1.jpg"], [0], ["a"])
    with pytest.raises(ReadError, match=r"http://host/1.jpg: could not be read .no answer for 0"):
        read_image(source, 0)
    assert source.tries == 4


def test_a_read_that_ends_before_the_file_does_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, counts, preadv = tmp_path / "a.jpg", [3, 0], os.preadv

    def short(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        count = counts.pop(0) if counts else len(buffers[0])
        return preadv(descriptor, [buffers[0][:count]], offset) if count else 0

    file.write_bytes(b"content")
    monkeypatch.setattr(os, "preadv", short)
    monkeypatch.setattr(retries, "PAUSES", (0.0,))
    assert read_bytes(file).numpy().tobytes() == b"content" and not counts
    with pytest.raises(DataError, match="ends too early"):
        read_bytes(file, 4, 4)


# Programs


def test_packing_leaves_no_image_out_because_of_a_failing_disk(
    photo_folder: Path, tmp_path: Path, disk: Disk, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "packed"
    command = [f"source={photo_folder}", f"output={output}"]
    disk.fails("train/cat/002.jpg")
    assert commands.optimize(command) == ExitCode.FAILED
    assert "train/cat/002.jpg: could not be read (Stale file handle)" in capsys.readouterr().err
    assert not [*output.glob("[!.]*")]
    disk.fails("train/cat/002.jpg", times=2)
    assert commands.optimize(command) == ExitCode.FINISHED
    assert json.loads((output / "report.json").read_text())["splits"]["train"]["rejected"] == {}


def test_an_index_is_not_made_without_what_a_failing_disk_kept(
    photo_folder: Path, tmp_path: Path, disk: Disk
) -> None:
    disk.fails("train/cat/002.jpg")
    command = [f"source={photo_folder}", f"output={tmp_path / 'index'}", "output_format=index"]
    assert commands.optimize(command) == ExitCode.FAILED
    assert not [*(tmp_path / "index").glob("[!.]*")]


def test_check_dataset_lists_a_file_that_a_failing_disk_does_not_give(
    photo_folder: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    disk.fails("train/cat/002.jpg")
    assert commands.check_dataset([f"root={photo_folder}"]) == ExitCode.FAILED
    assert "train/cat/002.jpg: could not be read (Stale file handle), also when" in caplog.text
    assert "72 images checked, problems: 1" in caplog.text
    disk.times = 2
    assert commands.check_dataset([f"root={photo_folder}"]) == ExitCode.FINISHED


@pytest.mark.parametrize("table", ["rows.csv", "rows.parquet"])
def test_a_table_that_a_disk_fails_to_read_is_named(found: dict[str, Any], table: str) -> None:
    (line,) = found[TABLES][table].splitlines()
    assert table in line and os.strerror(errno.ESTALE) in line


# Waiting


def test_waiting_holds_no_other_thread(
    photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_parquet(write_dataset(photo_folder, tmp_path))
    waiting, plain = threading.Event(), pq.ParquetFile

    def opened(file: Path, **options: Any) -> Any:
        if "train-00000" in str(file):
            waiting.set()
            raise OSError(errno.EIO, "gone", str(file))
        return plain(file, **options)

    monkeypatch.setattr(retries, "PAUSES", (FOR_EVER,))
    monkeypatch.setattr(pq, "ParquetFile", opened)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(read_image, source, 0)
        waiting.wait()
        assert len(read_image(source, len(source) - 1))
        with without_retries():
            assert isinstance(first.exception(), ReadError)


@pytest.mark.parametrize("engine", ["threads", "pillow"])
def test_a_loader_that_is_closed_ends_the_wait(
    engine: Way, photo_folder: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "PAUSES", (FOR_EVER,))
    source = source_of(photo_folder, "val")
    loader = loader_of(source, engine, "val", batch_size=8)
    disk.fails(source.key(10))
    batches = loader.epoch(0)
    assert len(next(batches).labels) == 8
    if engine == "threads":
        disk.met.wait()
    loader.close()


def test_work_in_threads_that_is_given_up_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "PAUSES", (FOR_EVER,))
    waiting = threading.Event()

    def failing(_: int) -> int:
        waiting.set()
        raise OSError(errno.EIO, "gone")

    def work(item: int) -> int:
        return item if not item else with_retries(failing, item)

    results = in_threads(work, range(20), 20, "working")
    assert next(results) == 0
    waiting.wait()
    close: Callable[[], None] = results.close  # type: ignore[attr-defined]
    close()
