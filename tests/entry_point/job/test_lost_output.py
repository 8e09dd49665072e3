"""Nobody reads the output any more: the job stops with a checkpoint, or goes on without a word."""

import fcntl
import os
import pty
import signal
import subprocess
import termios
import time
from functools import partial
from pathlib import Path

from entry_point.job import exit_codes
from tests.entry_point.job.test_processes import ENDLESS, wait_for_steps
from tests.entry_point.training.training_jobs import start_job, write_job

Process = subprocess.Popen[str]


def assert_stopped_with_a_checkpoint(root: Path, process: Process) -> None:
    assert process.wait(timeout=120) == exit_codes.STOPPED
    assert list((root / "checkpoints").glob("step-*.pt"))
    assert not (root / "output" / "failure").exists()
    assert not list((root / "model").iterdir())


def test_a_job_whose_reader_has_enough_stops_with_a_checkpoint(
    tmp_path: Path, photo_folder: Path
) -> None:
    reader, output = os.pipe()
    process = start_with(output, tmp_path, photo_folder, *ENDLESS, terminal=False)
    os.close(output)
    wait_for_steps(tmp_path, process, 3)
    os.close(reader)  # as `| head` does
    assert_stopped_with_a_checkpoint(tmp_path, process)


def start_with(output: int, root: Path, data: Path, *overrides: str, terminal: bool) -> Process:
    """Start a job that writes to `output`, which is its controlling terminal or a file."""
    command, environment = write_job(root, data, overrides)
    take = partial(fcntl.ioctl, output, termios.TIOCSCTTY, 0)
    return subprocess.Popen(
        command,
        env=environment,
        stdin=output if terminal else subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=terminal,
        preexec_fn=take if terminal else None,
        text=True,
    )


def test_a_job_whose_terminal_is_closed_stops_with_a_checkpoint(
    tmp_path: Path, photo_folder: Path
) -> None:
    screen, output = pty.openpty()
    process = start_with(output, tmp_path, photo_folder, *ENDLESS, terminal=True)
    os.close(output)
    wait_for_steps(tmp_path, process, 3)
    os.close(screen)
    assert_stopped_with_a_checkpoint(tmp_path, process)


def test_a_job_that_cannot_write_its_log_finishes(tmp_path: Path, photo_folder: Path) -> None:
    with Path("/dev/full").open("w") as full:
        process = start_with(full.fileno(), tmp_path, photo_folder, terminal=False)
        assert process.wait(timeout=120) == exit_codes.FINISHED
    assert (tmp_path / "model" / "model.safetensors").is_file()


def test_a_failing_job_that_cannot_write_its_log_keeps_its_exit_code_and_reason(
    tmp_path: Path, photo_folder: Path
) -> None:
    with Path("/dev/full").open("w") as full:
        wrong = "trainer.epochs=0"
        process = start_with(full.fileno(), tmp_path, photo_folder, wrong, terminal=False)
        assert process.wait(timeout=120) == exit_codes.USAGE
    assert "trainer.epochs=0" in (tmp_path / "output" / "failure").read_text()


def test_a_hangup_stops_with_a_checkpoint(tmp_path: Path, photo_folder: Path) -> None:
    process = start_job(tmp_path, photo_folder, ENDLESS)
    wait_for_steps(tmp_path, process, 3)
    process.send_signal(signal.SIGHUP)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == exit_codes.STOPPED, output
    assert "stopped on request" in output


def test_a_hangup_is_ignored_under_nohup(tmp_path: Path, photo_folder: Path) -> None:
    command, environment = write_job(tmp_path, photo_folder, ENDLESS)
    process: Process = subprocess.Popen(
        ["nohup", *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_for_steps(tmp_path, process, 1)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    wait_for_steps(tmp_path, process, 50)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == exit_codes.STOPPED, output
