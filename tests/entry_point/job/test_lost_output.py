"""Nobody reads the output any more: the job stops with a checkpoint, or goes on without a word."""

import fcntl
import os
import pty
import signal
import sys
import termios
import time
from functools import partial
from pathlib import Path

from entry_point.job.program import ExitCode
from tests import forkserver
from tests.entry_point.job.test_processes import ENDLESS, wait_for_steps
from tests.entry_point.training import forked_ranks
from tests.entry_point.training.training_jobs import stop_job, write_job
from tests.forkserver import Program

FULL = Path("/dev/full")


def assert_stopped_with_a_checkpoint(root: Path, process: Program) -> None:
    assert process.wait(timeout=120) == ExitCode.STOPPED
    assert list((root / "checkpoints").glob("step-*.pt"))
    assert not (root / "output" / "failure").exists()


def start_with(
    output: Path, root: Path, data: Path, *overrides: str, terminal: bool = False
) -> Program:
    """Start a job that writes to `output`, which is its controlling terminal or a file."""
    command, environment = write_job(root, data, overrides)
    prepare = partial(_write_to, output, terminal=terminal)
    log = root / "input/log"
    return forkserver.start(command[1:], log, environment=environment, prepare=prepare)


def _write_to(output: Path, *, terminal: bool) -> None:
    number = os.open(output, os.O_RDWR if terminal else os.O_WRONLY)
    if terminal:
        fcntl.ioctl(number, termios.TIOCSCTTY, 0)
    for stream in range(0 if terminal else 1, 3):
        os.dup2(number, stream)
    os.close(number)
    # Those of the fork server remember that they write to a file, in which one can seek.
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    vars(sys).update(__stdout__=sys.stdout, __stderr__=sys.stderr)  # what keeps both open
    forked_ranks.prepare()


def test_a_job_whose_reader_has_enough_stops_with_a_checkpoint(
    tmp_path: Path, photo_folder: Path
) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    process = start_with(pipe, tmp_path, photo_folder, *ENDLESS)
    reader = os.open(pipe, os.O_RDONLY)
    wait_for_steps(tmp_path, process, 3)
    os.close(reader)  # as `| head` does
    assert_stopped_with_a_checkpoint(tmp_path, process)


def test_a_job_whose_terminal_is_closed_stops_with_a_checkpoint(
    tmp_path: Path, photo_folder: Path
) -> None:
    screen, output = pty.openpty()
    terminal = Path(os.ttyname(output))
    process = start_with(terminal, tmp_path, photo_folder, *ENDLESS, terminal=True)
    wait_for_steps(tmp_path, process, 3)
    os.close(output)
    os.close(screen)
    assert_stopped_with_a_checkpoint(tmp_path, process)


def test_a_job_that_cannot_write_its_log_finishes(tmp_path: Path, photo_folder: Path) -> None:
    process = start_with(FULL, tmp_path, photo_folder)
    assert process.wait(timeout=120) == ExitCode.FINISHED
    assert (tmp_path / "model" / "model.safetensors").is_file()


def test_a_failing_job_that_cannot_write_its_log_keeps_its_exit_code_and_reason(
    tmp_path: Path, photo_folder: Path
) -> None:
    process = start_with(FULL, tmp_path, photo_folder, "trainer.epochs=0")
    assert process.wait(timeout=120) == ExitCode.USAGE
    assert "trainer.epochs=0" in (tmp_path / "output" / "failure").read_text()


def _lose_the_reader() -> None:
    reader, output = os.pipe()
    os.close(reader)  # as `| head` does
    os.dup2(output, 1)
    sys.stdout = vars(sys)["__stdout__"] = os.fdopen(1, "w")


def test_a_command_whose_reader_has_enough_ends_without_a_word(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.jpg").write_text("no image")
    command = ["-m", "entry_point", "check-dataset", f"root={tmp_path}"]
    log, errors = tmp_path / "log", tmp_path / "errors"
    process = forkserver.start(command, log, errors=errors, prepare=_lose_the_reader)
    assert process.wait(timeout=120) == ExitCode.FAILED
    (line,) = errors.read_text().splitlines()
    assert line.startswith("checking: 2 of 2")


def _fill_the_disk() -> None:
    os.dup2(os.open(FULL, os.O_WRONLY), 1)
    sys.stdout = vars(sys)["__stdout__"] = os.fdopen(1, "w", buffering=1)


def test_a_command_whose_output_is_lost_on_a_full_disk_says_so(tmp_path: Path) -> None:
    log, errors = tmp_path / "log", tmp_path / "errors"
    process = forkserver.start(
        ["-m", "entry_point", "env"], log, errors=errors, prepare=_fill_the_disk
    )
    assert process.wait(timeout=120) != ExitCode.FINISHED
    assert "No space left on device" in errors.read_text()


def _ignore_hangups_as_nohup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    forked_ranks.prepare()


def test_a_hangup_is_ignored_under_nohup(tmp_path: Path, photo_folder: Path) -> None:
    command, environment = write_job(tmp_path, photo_folder, ENDLESS)
    log = tmp_path / "input/log"
    process = forkserver.start(
        command[1:], log, environment=environment, prepare=_ignore_hangups_as_nohup
    )
    wait_for_steps(tmp_path, process, 1)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    wait_for_steps(tmp_path, process, 50)
    stop_job(process)
