"""Temporary folders: removed at the end, and by the next process if the end was a kill."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from entry_point.contract.whole_file import FOLDER_PREFIX, temporary_folder

HOLDER = """
import sys
from entry_point.contract.whole_file import temporary_folder

with temporary_folder() as folder:
    (folder / "config.yaml").write_text("a: 1")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a system's temporary folder without the folders of other tests."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def start_holder() -> "tuple[subprocess.Popen[str], Path]":
    """Start a process with a temporary folder; returns both."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_temporary_folder_is_removed_at_the_end(tmp_path: Path) -> None:
    with pytest.raises(KeyError), temporary_folder() as folder:
        assert folder.parent == tmp_path
        (folder / "stop").touch()
        raise KeyError
    assert not list(tmp_path.iterdir())


def test_the_folder_of_a_killed_process_is_removed_and_that_of_a_living_one_kept() -> None:
    living, lived_in = start_holder()
    killed, left = start_holder()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert left.is_dir()
    with temporary_folder() as folder:
        assert not left.exists()
        assert (lived_in / "config.yaml").is_file()
        assert set(folder.parent.iterdir()) == {folder, lived_in}
    living.communicate()
    assert living.returncode == 0
    assert not lived_in.exists()


def test_folders_that_are_no_jobs_are_kept(tmp_path: Path) -> None:
    """Without a lock, another user's, or a link to a folder elsewhere."""
    own = tmp_path / f"{FOLDER_PREFIX}of-a-person"
    own.mkdir()
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "lock").touch()
    (tmp_path / f"{FOLDER_PREFIX}link").symlink_to(linked)
    kept = {own, linked, tmp_path / f"{FOLDER_PREFIX}link"}
    if os.getuid() == 0:
        other = tmp_path / f"{FOLDER_PREFIX}other-user"
        other.mkdir()
        (other / "lock").touch()
        os.chown(other, 12345, -1)
        kept.add(other)
    with temporary_folder() as folder:
        assert set(tmp_path.iterdir()) == {*kept, folder}
    assert (linked / "lock").exists()
