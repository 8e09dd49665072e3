"""How a job's containers are started, followed and ended, on an engine that is a shell script."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch import docker
from launch.request.launch_errors import LaunchError
from tests.launch.containers.conftest import IDLE, FakeEngine

ROOT = Path(__file__).resolve().parents[3]


def engine_script(codes: dict[str, int]) -> str:
    """An engine whose containers say a line and end with the code of their host."""
    cases = "".join(f"*{host}) code={code};;\n" for host, code in codes.items())
    return f"""
        for last; do :; done
        case $last in {cases} *) code=0;; esac
        case $1 in
            image) echo '[{{"Id": "x"}}]';;
            logs) echo "hello from $last";;
            wait) echo $code;;
            inspect) echo false;;
        esac
    """


def test_logs_are_merged_under_their_hosts_names_and_the_first_failure_is_the_jobs(
    desk: Path,
    fake_engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert desk
    fake_engine(engine_script({"algo-2": 7}))
    monkeypatch.setenv("HOSTS", "2")
    assert docker.train(["name=two"]) == 7
    told = capfd.readouterr().out
    assert "algo-1 | hello from" in told
    assert "algo-2 | hello from" in told
    assert "algo-2 ended with code 7" in told


def test_what_was_created_is_removed_even_if_another_cannot_be(
    desk: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert desk
    calls = fake_engine(
        """
        case "$1 $*" in
            image*) echo '[{"Id": "x"}]';;
            ps*) echo 0123;;
            network*ls*) echo 4567;;
            create*algo-2*) echo 'Error: no space left on device' >&2; exit 1;;
        esac
        """
    )
    monkeypatch.setenv("HOSTS", "2")
    with pytest.raises(LaunchError, match="disk is full"):
        docker.train(["name=half"])
    assert "rm --force --volumes 0123" in calls.read_text()
    assert "network rm 4567" in calls.read_text()


def test_ctrl_c_asks_once_and_then_insists(desk: Path, fake_engine: FakeEngine) -> None:
    ready = desk / "ready"
    calls = fake_engine(
        f"""
        case $1 in
            image) echo '[{{"Id": "x"}}]';;
            logs) touch {ready}; while [ ! -e {desk}/killed ]; do sleep 0.1; done;;
            kill) touch {desk}/killed;;
            wait) echo 137;;
            inspect) echo false;;
        esac
        """
    )
    process = launch(desk, "stubborn")
    wait_until(ready.exists)
    process.send_signal(signal.SIGINT)
    wait_until(lambda: "stop -t 120 stubborn-" in calls.read_text())
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 137
    assert "kill stubborn-" in calls.read_text()


def launch(desk: Path, name: str) -> subprocess.Popen[str]:
    """The launcher as a process of its own, its output in a pipe."""
    return subprocess.Popen(
        [sys.executable, "-m", "launch.docker", f"name={name}"],
        cwd=desk,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ctrl_c_before_the_containers_run_starts_none(desk: Path, fake_engine: FakeEngine) -> None:
    calls = fake_engine(f"[ $1 = create ] && {{ touch {desk}/ready; sleep 1; }}\n{IDLE}")
    process = launch(desk, "early")
    wait_until((desk / "ready").exists)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 1
    assert process.stderr and "stopped before the job started" in process.stderr.read()
    assert "\nstart " not in calls.read_text()


def test_ctrl_c_while_the_containers_start_stops_them(desk: Path, fake_engine: FakeEngine) -> None:
    calls = fake_engine(f"[ $1 = start ] && {{ touch {desk}/ready; sleep 1; }}\n{IDLE}")
    process = launch(desk, "starting")
    wait_until((desk / "ready").exists)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert "\nstop -t 120 starting-" in calls.read_text()


def test_a_job_whose_lines_nobody_reads_any_more_is_stopped(
    desk: Path, fake_engine: FakeEngine
) -> None:
    calls = fake_engine(
        f"""
        case $1 in
            logs) while [ ! -e {desk}/stopped ]; do echo a line; sleep 0.05; done; exit;;
            stop) touch {desk}/stopped;;
        esac
        {IDLE}"""
    )
    process = launch(desk, "headless")
    assert process.stdout
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(30) == 0
    assert "stop -t 120 headless-" in calls.read_text()
    assert "\nkill " not in calls.read_text()


def test_the_clean_up_waits_for_what_a_killed_launcher_was_creating(
    desk: Path, fake_engine: FakeEngine
) -> None:
    calls = fake_engine(
        f"""
        case $1 in
            create) touch {desk}/ready; sleep 2; echo created >>{desk}/calls; exit;;
            ps) grep -q created {desk}/calls && echo 0123; exit;;
        esac
        {IDLE}"""
    )
    process = launch(desk, "killed")
    wait_until((desk / "ready").exists)
    process.kill()
    process.wait()
    wait_until(lambda: "rm --force --volumes 0123" in calls.read_text())


def test_a_container_that_cannot_be_started_says_why(desk: Path, fake_engine: FakeEngine) -> None:
    assert desk
    fake_engine(
        f"[ $1 = start ] && {{ echo could not select device driver gpu >&2; exit 1; }}\n{IDLE}"
    )
    with pytest.raises(LaunchError, match="nvidia-container-toolkit"):
        docker.train(["name=refused"])


def wait_until(condition: object, seconds: float = 30) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
