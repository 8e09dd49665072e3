"""How containers are started, followed and stopped; the engine is a shell script."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from entry_point.job.program import ExitCode
from launch import docker
from tests.launch.containers.conftest import IDLE, FakeEngine

ROOT = Path(__file__).resolve().parents[3]
# A job that runs until `docker run` gets a signal, which it passes on, or until it is killed.
ENDLESS = """
    case $1 in
        image) echo '[{"Id": "x", "Config": {}}]';;
        run)
            trap 'echo stopped; exit 75' TERM
            touch %(folder)s/ready
            while [ ! -e %(folder)s/killed ]; do echo a line || exit 1; sleep 0.05; done
            exit 137;;
        kill) touch %(folder)s/killed;;
    esac
"""


def test_the_log_is_printed_and_the_exit_code_is_the_containers(
    start_folder: Path, fake_engine: FakeEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    assert start_folder
    calls = fake_engine(IDLE.replace("exit 0", "echo a line of the job; exit 7"))
    assert docker.train(["name=one"]) == 7
    assert "\na line of the job\n" in capfd.readouterr().out
    assert "\nrm --force --volumes one-" in calls.read_text()


def test_a_job_that_was_killed_is_told_the_likely_reason(
    start_folder: Path, fake_engine: FakeEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    assert start_folder
    fake_engine(IDLE.replace("exit 0", "exit 137"))
    assert docker.train(["name=large"]) == 137
    assert "was killed, as when it runs out of memory: " in capfd.readouterr().out


def launch(start_folder: Path, name: str) -> subprocess.Popen[str]:
    """Start docker-train as a process, with its output in a pipe."""
    return subprocess.Popen(
        [sys.executable, "-m", "launch.docker", "train", f"name={name}"],
        cwd=start_folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_stops_the_job(
    start_folder: Path, fake_engine: FakeEngine, number: int
) -> None:
    calls = fake_engine(ENDLESS % {"folder": start_folder})
    process = launch(start_folder, "gentle")
    wait_until((start_folder / "ready").exists)
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == ExitCode.STOPPED
    assert "SIGTERM, then 120 s to shut down\n" in out and "\nstopped\n" in out
    assert "kill " not in calls.read_text()


def test_the_second_signal_kills_it(start_folder: Path, fake_engine: FakeEngine) -> None:
    stubborn = ENDLESS.replace("echo stopped; exit 75", "echo stopping")
    calls = fake_engine(stubborn % {"folder": start_folder})
    process = launch(start_folder, "stubborn")
    assert process.stdout
    wait_until((start_folder / "ready").exists)
    process.send_signal(signal.SIGINT)
    while process.stdout.readline() != "stopping\n":
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 137 and "out of memory" not in out
    assert "\nkill stubborn-" in calls.read_text()


def test_a_job_is_stopped_when_its_output_pipe_closes(
    start_folder: Path, fake_engine: FakeEngine
) -> None:
    calls = fake_engine(ENDLESS % {"folder": start_folder})
    process = launch(start_folder, "headless")
    assert process.stdout
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(30) == ExitCode.NO_READER
    assert "\nstop -t 120 headless-" in calls.read_text()
    assert "\nkill " not in calls.read_text()


def wait_until(condition: object, seconds: float = 30) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
