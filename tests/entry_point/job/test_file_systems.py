"""File systems that have no file locks, links, permissions or sync of folders: a run trains, and
one line says what is missing where it matters."""

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from entry_point.job.run_folder import LATEST, RunFolder
from entry_point.job.run_lock import holding
from entry_point.job.whole_file import sync, write_text
from tests.entry_point.training import forked

UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize("number", [*UNSUPPORTED, errno.EPERM])
def test_a_folder_that_cannot_be_synced_keeps_its_files(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def failing(file: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{file}"):  # noqa: PTH112
            raise error(number)
        fsync(file)

    monkeypatch.setattr(os, "fsync", failing)
    write_text(tmp_path / "a.txt", "text")
    assert (tmp_path / "a.txt").read_text() == "text"
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_to_sync_is_an_error(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_file: int) -> None:
        raise error(number)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match=os.strerror(number)):
        sync(tmp_path)


@pytest.mark.parametrize("number", [*UNSUPPORTED, errno.ENOLCK])
def test_without_file_locks_one_line_names_the_folder(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(_file: Any, _operation: int) -> None:
        raise error(number)

    monkeypatch.setattr(fcntl, "flock", failing)
    with holding(RunFolder(tmp_path)):
        said = capsys.readouterr().err
        assert f"{tmp_path} is on a file system without file locks" in said
        assert said.count("\n") == 1


@pytest.mark.parametrize("latest", ["no links", "a folder", "a full folder"])
def test_where_latest_cannot_be_a_link_one_line_says_so(
    latest: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = RunFolder(tmp_path / "first")
    run.root.mkdir()
    if latest == "no links":

        def failing(*_arguments: Any, **_named: Any) -> None:
            raise error(errno.EPERM)

        monkeypatch.setattr(os, "symlink", failing)
    else:
        (tmp_path / LATEST).mkdir()
        if latest == "a full folder":
            (tmp_path / LATEST / "mine").touch()
    before = sorted(tmp_path.iterdir())
    run.become_latest()
    said = capsys.readouterr().err
    assert f"{tmp_path / LATEST} cannot link to this run" in said and said.count("\n") == 1
    assert str(run.root) in said
    assert sorted(tmp_path.iterdir()) == before


def without_permissions() -> None:
    """As on a share of Windows, or a bucket that is mounted."""

    def failing(*_arguments: Any, **_named: Any) -> None:
        raise error(errno.EPERM)

    os.chmod = os.fchmod = failing


def test_without_permissions_a_job_writes_its_model_and_its_code(
    tmp_path: Path, photo_folder: Path
) -> None:
    job = ["model.name=project.models.small_net", "trainer.epochs=1"]
    assert forked.run(tmp_path, photo_folder, job, prepare=without_permissions) == 0
    assert (tmp_path / "model" / "model.safetensors").stat().st_size
    assert (tmp_path / "model" / "code" / "project" / "models.py").is_file()
    assert not list((tmp_path / "model").rglob("__pycache__"))
