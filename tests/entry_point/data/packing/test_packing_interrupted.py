"""Packing that was killed or ran out of disk space resumes after its last complete shard."""

import errno
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

import pytest

from entry_point.data.sources.dataset_description import is_packed
from entry_point.job.whole_file import whole_file
from tests import forkserver
from tests.entry_point.data.packing.pack_command import command, contents, copy, pack
from tests.forkserver import Program

WORK = "data/.unfinished"


def _start(source: Path, output: Path, log: Path | None = None) -> Program:
    _, *program = command(source, output)
    return forkserver.start(program, log or Path(os.devnull))


def _kill_when(ready: Callable[[], bool], process: Program) -> None:
    while True:
        alive = process.poll() is None
        if ready():
            break
        assert alive
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()


def _complete(folder: Path) -> dict[Path, int]:
    """Modification time of the rows of each complete shard."""
    return {file: file.stat().st_mtime_ns for file in folder.glob(f"{WORK}/*/*.rows")}


def _is_written_to(reader: int) -> bool:
    try:
        return os.read(reader, 1) != b""
    except BlockingIOError:  # a writer has opened it, but has not written yet
        return True


def _kill_with_some_shards_done(source: Path, output: Path) -> None:
    """Try again if the run was faster, as on a machine with other work."""
    while True:
        process = _start(source, output)
        _kill_when(lambda: bool(_complete(output.parent)) or is_packed(output), process)
        if not is_packed(output):
            return
        shutil.rmtree(output)


def _kill_with_all_shards_done(source: Path, output: Path) -> None:
    """Resume a run and kill it as it writes the index: a pipe in its place blocks it."""
    pipe = output.parent / WORK / "train/index.safetensors.part"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    _kill_when(lambda: _is_written_to(reader), _start(source, output))
    os.close(reader)
    pipe.unlink(missing_ok=True)  # no file: writing the index to a pipe fails at its end
    assert not is_packed(output)


def _fail(data: Path, *_: object) -> None:
    raise OSError(errno.EIO, "the power is gone", str(data))


def test_killed_run_resumes_after_its_last_complete_shard_with_the_same_bytes(
    photo_folder: Path, packed: Path, tmp_path: Path
) -> None:
    _kill_with_some_shards_done(photo_folder, tmp_path / "data")
    first = _complete(tmp_path)
    _kill_with_all_shards_done(photo_folder, tmp_path / "data")
    second = _complete(tmp_path)
    assert first.items() <= second.items()
    assert len(first) < len(second) == len(list(packed.rglob("*.tar")))
    shards = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.tar")}
    assert pack(photo_folder, tmp_path / "data") == 0
    for file, written in shards.items():
        final = tmp_path / "data" / file.relative_to(tmp_path / WORK)
        assert final.stat().st_mtime_ns == written
    assert contents(tmp_path / "data") == contents(packed)
    assert [file.name for file in tmp_path.iterdir()] == ["data"]


def test_run_killed_while_its_files_move_to_their_place_moves_the_others(
    photo_folder: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("entry_point.data.packing.pack.Packing.publish", _fail)
        assert pack(photo_folder, tmp_path / "data") == 1
    work = tmp_path / WORK
    for file in sorted(work.rglob("*.tar"))[::2]:
        final = tmp_path / "data" / file.relative_to(work)
        final.parent.mkdir(exist_ok=True)
        file.rename(final)
    assert not is_packed(tmp_path / "data")
    written = [file.stat().st_mtime_ns for file in tmp_path.rglob("*.tar")]
    assert pack(photo_folder, tmp_path / "data") == 0
    assert contents(tmp_path / "data") == contents(packed)
    assert sorted(written) == sorted(file.stat().st_mtime_ns for file in tmp_path.rglob("*.tar"))


def test_a_report_that_a_killed_run_left_unfinished_is_not_published(
    photo_folder: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("entry_point.data.packing.pack.whole_file", _killed_while_writing)
        assert pack(photo_folder, tmp_path / "data") != 0
    assert (tmp_path / WORK / "report.json.part").exists()
    assert pack(photo_folder, tmp_path / "data") == 0
    assert contents(tmp_path / "data") == contents(packed)


def test_work_folder_of_a_run_killed_after_its_rename_is_removed(
    photo_folder: Path, packed: Path, tmp_path: Path
) -> None:
    copy(packed, tmp_path / "data")
    (tmp_path / WORK / "train").mkdir(parents=True)
    (tmp_path / WORK / "plan").write_text("whatever it was")
    assert pack(photo_folder, tmp_path / "data") == 0
    assert contents(tmp_path / "data") == contents(packed)
    assert [file.name for file in tmp_path.iterdir()] == ["data"]


def _killed_while_writing(path: Path) -> AbstractContextManager[BinaryIO]:
    """A killed process removes no temporary file."""
    if path.name != "report.json":
        return whole_file(path)
    path.with_name(f"{path.name}.part").write_text("{")
    raise KeyboardInterrupt


def _run_limited(source: Path, output: Path, largest_file: int) -> str:
    """The error of a run without disk space; a limit on file sizes stands in for a full disk."""
    limits = (largest_file, largest_file)
    job = subprocess.run(
        command(source, output),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits),
        capture_output=True,
        text=True,
        check=False,
    )
    assert job.returncode == 1 and "Traceback" not in job.stderr, job.stderr
    assert not is_packed(output)
    return job.stderr


def test_full_disk_error_names_the_file_and_the_next_run_resumes(
    photo_folder: Path, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "data"
    error = _run_limited(photo_folder, output, 75_000)
    assert f"{tmp_path / WORK}/train/shard-0000" in error
    assert "File too large: free up space and run" in error
    index = tmp_path / WORK / "train/index.safetensors.part"
    index.symlink_to("/dev/full")
    assert pack(photo_folder, output) == 1
    reason = f"{index.with_suffix('')}: No space left on device: free up space"
    assert f"optimize: {reason}" in capsys.readouterr().err
    assert not index.is_symlink()
    assert pack(photo_folder, output) == 0
    assert contents(output) == contents(packed)


def test_second_run_waits_for_the_first_and_says_so(
    photo_folder: Path, packed: Path, tmp_path: Path
) -> None:
    first = _start(photo_folder, tmp_path / "data")
    while not (tmp_path / WORK).exists():
        assert first.poll() is None
        time.sleep(0.005)
    first.send_signal(signal.SIGSTOP)
    log = tmp_path / "log"
    second = _start(photo_folder, tmp_path / "data", log)
    while "waiting for another run" not in log.read_text():
        assert second.poll() is None
        time.sleep(0.005)
    first.send_signal(signal.SIGCONT)
    rest, _ = second.communicate()
    assert second.returncode == first.wait() == 0
    assert "is already complete" in rest
    assert contents(tmp_path / "data") == contents(packed)
