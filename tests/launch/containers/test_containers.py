"""How containers are started, followed and stopped; the engine is a shell script."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from entry_point.contract import exit_codes
from entry_point.contract.program import UserError
from launch import docker
from tests.launch.containers.conftest import IDLE, FakeEngine

ROOT = Path(__file__).resolve().parents[3]


def engine_script(codes: dict[str, int]) -> str:
    """An engine whose containers print a line and exit with the code of their host."""
    cases = "".join(f"*{host}) code={code};;\n" for host, code in codes.items())
    return f"""
        for last; do :; done
        case $last in {cases} *) code=0;; esac
        case $1 in
            image) echo '[{{"Id": "x", "Config": {{}}}}]';;
            logs) echo "hello from $last";;
            wait) echo $code;;
        esac
    """


def test_logs_are_merged_with_host_names_and_the_first_failure_sets_the_exit_code(
    start_folder: Path,
    fake_engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert start_folder
    fake_engine(engine_script({"algo-2": 7}))
    monkeypatch.setenv("HOSTS", "2")
    assert docker.train(["name=two"]) == 7
    text = capfd.readouterr().out
    assert "algo-1 | hello from" in text
    assert "algo-2 | hello from" in text
    assert "algo-2 ended with exit code 7" in text


def test_a_host_that_was_killed_is_named_with_the_likely_reason(
    start_folder: Path, fake_engine: FakeEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    assert start_folder
    fake_engine(engine_script({"algo-1": 137}))
    assert docker.train(["name=large"]) == 137
    assert "algo-1 was killed, as when it runs out of memory: " in capfd.readouterr().out


def test_created_containers_are_removed_if_a_later_one_fails(
    start_folder: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert start_folder
    calls = fake_engine(
        """
        case "$1 $*" in
            image*) echo '[{"Id": "x", "Config": {}}]';;
            run*algo-2*) echo 'Error: no space left on device' >&2; exit 1;;
        esac
        """
    )
    monkeypatch.setenv("HOSTS", "2")
    with pytest.raises(UserError, match="Error: no space left on device"):
        docker.train(["name=half"])
    removed = [line for line in calls.read_text().splitlines() if " rm " in f" {line}"]
    assert [line.rpartition("-")[2] for line in removed] == ["1", "2", "network"]


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


def test_ctrl_c_before_the_start_starts_no_container(
    start_folder: Path, fake_engine: FakeEngine
) -> None:
    calls = fake_engine(f"[ $1 = network ] && {{ touch {start_folder}/ready; sleep 1; }}\n{IDLE}")
    process = launch(start_folder, "early")
    wait_until((start_folder / "ready").exists)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == exit_codes.USAGE
    assert process.stderr and "stopped before the job started" in process.stderr.read()
    assert "\nrun " not in calls.read_text()


def test_ctrl_c_while_the_containers_start_stops_them(
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
