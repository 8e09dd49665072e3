"""Disks that are full, and disks without hard links."""

import errno
import os
import subprocess
from pathlib import Path

import pytest

from entry_point.contract import exit_codes
from entry_point.contract.program import LIMIT, failure_file
from entry_point.contract.whole_file import link_or_copy, write_text
from tests.entry_point.training.test_full_disk import fill, small_disk
from tests.entry_point.training.training_jobs import run_job, write_job

assert small_disk  # a fixture
REFUSE_HARD_LINKS = """
import os

def link(*_, **__):
    raise PermissionError(1, "Operation not permitted")

os.link = link
"""


def test_a_disk_without_room_for_the_reason_keeps_no_part_of_it(small_disk: Path) -> None:
    path = small_disk / "output" / "failure"
    leave_reason = failure_file(path)
    fill(small_disk)
    leave_reason("ä" * LIMIT)
    assert not path.exists()


def test_a_job_that_starts_on_a_full_disk_says_so_in_one_line(
    small_disk: Path, photo_folder: Path
) -> None:
    command, environment = write_job(small_disk, photo_folder)
    fill(small_disk)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == exit_codes.FAILED
    (line,) = done.stderr.splitlines()
    advice = "No space left on device: free up space and run the same command again"
    assert line.startswith(f"train: {small_disk}/") and line.endswith(advice)


def test_a_text_for_which_there_is_no_room_names_folder_and_size(small_disk: Path) -> None:
    path = small_disk / "notes.json"
    with pytest.raises(OSError, match=f"no space left in {small_disk}, 5 MB needed") as caught:
        write_text(path, "x" * 4_000_000)
    assert caught.value.filename == str(path)
    assert not path.exists()


def test_without_hard_links_a_file_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    source = tmp_path / "source"
    source.write_text("content")
    link_or_copy(source, tmp_path / "link")
    assert (tmp_path / "link").samefile(source)
    monkeypatch.setattr(os, "link", refuse)
    link_or_copy(source, tmp_path / "copy")
    assert (tmp_path / "copy").read_text() == "content"
    assert not (tmp_path / "copy").samefile(source)


def test_a_job_needs_no_hard_links(
    tmp_path: Path, photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(REFUSE_HARD_LINKS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    overrides = ["trainer.epochs=1", "trainer.nproc_per_host=2"]
    output = run_job(tmp_path / "run", photo_folder, overrides)
    assert "startup: " in output
    assert (tmp_path / "run" / "checkpoints" / "best.pt").is_file()
    run_job(tmp_path / "run", photo_folder, ["trainer.epochs=0"], code=exit_codes.USAGE)
    assert "trainer.epochs=0" in (tmp_path / "run" / "output" / "failure").read_text()
