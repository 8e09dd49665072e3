"""Packing that was killed or ran out of disk space resumes after its last complete shard."""

import errno
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from entry_point.data.sources.dataset_description import is_packed
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


def _fail_to_publish(source: Path, output: Path) -> None:
    """A run that ends before its files move to their place."""

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "the power is gone", str(output))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("entry_point.data.packing.pack.Packing.publish", fail)
        assert pack(source, output) == 1
    assert not is_packed(output)


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
    photo_folder: Path, packed: Path, tmp_path: Path
) -> None:
    _fail_to_publish(photo_folder, tmp_path / "data")
    work = tmp_path / WORK
    for file in sorted(work.rglob("*.tar"))[::2]:
        final = tmp_path / "data" / file.relative_to(work)
        final.parent.mkdir(exist_ok=True)
        file.rename(final)
    (work / "report.json.part").write_text("{")  # of an earlier run that was killed as it wrote it
    written = [file.stat().st_mtime_ns for file in tmp_path.rglob("*.tar")]
    assert pack(photo_folder, tmp_path / "data") == 0
    assert contents(tmp_path / "data") == contents(packed)
    assert sorted(written) == sorted(file.stat().st_mtime_ns for file in tmp_path.rglob("*.tar"))


def test_shards_of_a_run_with_other_options_are_not_taken(
    photo_folder: Path, tmp_path: Path
) -> None:
    _fail_to_publish(photo_folder, tmp_path / "data")
    for output in ("data", "at once"):
        assert pack(photo_folder, tmp_path / output, "max_side=16") == 0
    assert contents(tmp_path / "data") == contents(tmp_path / "at once")


def test_work_folder_of_a_run_killed_after_its_rename_is_removed(
    photo_folder: Path, packed: Path, tmp_path: Path
) -> None:
    copy(packed, tmp_path / "data")
    (tmp_path / WORK / "train").mkdir(parents=True)
    (tmp_path / WORK / "plan").write_text("whatever it was")
    assert pack(photo_folder, tmp_path / "data") == 0
    assert contents(tmp_path / "data") == contents(packed)
    assert [file.name for file in tmp_path.iterdir()] == ["data"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
def test_full_disk_error_names_the_file_and_the_next_run_resumes(
    photo_folder: Path, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, folder = tmp_path / "data", tmp_path / WORK / "train"
    _fail_to_publish(photo_folder, output)
    (folder / "shard-000002.rows").unlink()
    for name in ("shard-000002.tar", "index.safetensors"):
        (folder / f"{name}.part").symlink_to("/dev/full")
        assert pack(photo_folder, output) == 1
        reason = f"optimize: {folder / name}: No space left on device: free up space and run"
        assert reason in capsys.readouterr().err
        assert not (folder / f"{name}.part").is_symlink() and not is_packed(output)
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
