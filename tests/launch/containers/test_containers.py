"""How containers are started, followed and stopped; the engine is a shell script."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from entry_point.contract.program import UserError
from launch import docker
from launch.containers import Container
from launch.engine import find_engine
from tests.launch.containers.conftest import IDLE, FakeEngine

ROOT = Path(__file__).resolve().parents[3]


def test_the_log_is_printed_and_the_exit_code_is_the_containers(
    start_folder: Path, fake_engine: FakeEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    assert start_folder
    fake_engine(f"[ $1 = logs ] && echo a line of the job\n{IDLE.replace('echo 0', 'echo 7')}")
    assert docker.train(["name=one"]) == 7
    assert "\na line of the job\n" in capfd.readouterr().out


def test_a_job_that_was_killed_is_told_the_likely_reason(
    start_folder: Path, fake_engine: FakeEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    assert start_folder
    fake_engine(IDLE.replace("echo 0", "echo 137"))
    assert docker.train(["name=large"]) == 137
    assert "was killed, as when it runs out of memory: " in capfd.readouterr().out


def test_a_container_that_does_not_start_is_removed(
    start_folder: Path, fake_engine: FakeEngine
) -> None:
    assert start_folder
    calls = fake_engine(
        f"[ $1 = run ] && {{ echo 'Error: no space left on device' >&2; exit 1; }}\n{IDLE}"
    )
    with pytest.raises(UserError, match="Error: no space left on device"):
        docker.train(["name=half"])
    assert "\nrm --force --volumes half-" in calls.read_text()


def test_first_ctrl_c_stops_and_second_kills(start_folder: Path, fake_engine: FakeEngine) -> None:
    ready = start_folder / "ready"
    calls = fake_engine(
        f"""
        case $1 in
            image) echo '[{{"Id": "x", "Config": {{}}}}]';;
            logs) touch {ready}; while [ ! -e {start_folder}/killed ]; do sleep 0.1; done;;
            kill) touch {start_folder}/killed;;
            wait) echo 137;;
        esac
        """
    )
    process = launch(start_folder, "stubborn")
    wait_until(ready.exists)
    process.send_signal(signal.SIGINT)
    wait_until(lambda: "stop -t 120 stubborn-" in calls.read_text())
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 137
    assert "kill stubborn-" in calls.read_text()


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


def test_ctrl_c_before_the_start_starts_no_container(fake_engine: FakeEngine) -> None:
    calls = fake_engine(IDLE)
    with Container(find_engine(), "docker-train", "early", 120) as container:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(UserError, match="stopped before the job started"):
            container.start("image")
    assert "\nrun " not in calls.read_text() and "\nrm " not in calls.read_text()


def test_ctrl_c_while_the_container_starts_stops_it(
    start_folder: Path, fake_engine: FakeEngine
) -> None:
    calls = fake_engine(f"[ $1 = run ] && {{ touch {start_folder}/ready; sleep 1; }}\n{IDLE}")
    process = launch(start_folder, "starting")
    wait_until((start_folder / "ready").exists)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert "\nstop -t 120 starting-" in calls.read_text()


def test_a_job_is_stopped_when_its_output_pipe_closes(
    start_folder: Path, fake_engine: FakeEngine
) -> None:
    calls = fake_engine(
        f"""
        case $1 in
            logs) while [ ! -e {start_folder}/stopped ]; do echo a line; sleep 0.05; done; exit;;
            stop) touch {start_folder}/stopped;;
        esac
        {IDLE}"""
    )
    process = launch(start_folder, "headless")
    assert process.stdout
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(30) == 0
    assert "stop -t 120 headless-" in calls.read_text()
    assert "\nkill " not in calls.read_text()


def wait_until(condition: object, seconds: float = 30) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
