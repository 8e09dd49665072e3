"""How a job's hosts are set up and ended, on an engine that is a shell script."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch import docker, local
from launch.docker import Settings
from launch.engine import ContainerError
from tests.launch_image.conftest import FakeEngine

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "job:1"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to launch from, without GPUs."""
    monkeypatch.setattr(local, "RUNS", tmp_path / "runs")
    monkeypatch.setenv("IMAGE", IMAGE)
    monkeypatch.setenv("GPUS", "0")
    return tmp_path


def engine_script(codes: dict[str, int]) -> str:
    """An engine whose containers say a line and end with the code of their host."""
    cases = "".join(f"*{host}) code={code};;\n" for host, code in codes.items())
    return f"""
        for last; do :; done
        case $last in {cases} *) code=0;; esac
        case $1 in
            image) echo '[{{"Id": "x"}}]';;
            start) echo "hello from $last"; exit $code;;
            inspect) echo "$code false";;
        esac
    """


def test_one_host_gets_the_whole_contract(
    desk: Path, fake_engine: FakeEngine, tmp_path: Path
) -> None:
    calls = fake_engine(engine_script({}))
    photos = tmp_path / "my photos"
    photos.mkdir()
    assert docker.train([f"data.root={photos}", "name=first", "trainer.epochs=1"]) == 0
    (create,) = [line for line in calls.read_text().splitlines() if line.startswith("create")]
    run = desk / "runs" / "first"
    for option in (
        "--hostname=algo-1",
        "--network-alias=algo-1",
        "--shm-size=1g",
        "--stop-timeout=120",
        f"--user={os.getuid()}:{os.getgid()}",
        f"--volume={run}/input:/opt/ml/input:ro",
        f"--volume={photos}:/opt/ml/input/data/training:ro",
        f"--volume={run}/model:/opt/ml/model",
        f"--volume={run}/output:/opt/ml/output",
        f"--volume={run}/checkpoints:/opt/ml/checkpoints",
        "--env=TRAINING_JOB_NAME=first",
    ):
        assert option in create
    assert create.endswith(f"{IMAGE} train")
    config = run / "input/config"
    assert json.loads((config / "inputdataconfig.json").read_text())["training"]
    chunk = json.loads((config / "hyperparameters.json").read_text())["hydra_overrides_000"]
    # data.root is a path of the desk; inside, the channel is where the data is.
    assert json.loads(chunk) == ["trainer.epochs=1"]


def test_each_host_is_told_its_own_name_and_the_same_order(
    desk: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_engine(engine_script({}))
    monkeypatch.setenv("HOSTS", "11")
    assert docker.train(["name=many"]) == 0
    run = desk / "runs" / "many"
    first = json.loads((run / "input/config/resourceconfig.json").read_text())
    assert first["current_host"] == "algo-1"
    assert first["hosts"][:3] == ["algo-1", "algo-10", "algo-11"]
    other = run / "hosts/algo-10/input/config/resourceconfig.json"
    assert json.loads(other.read_text()) == {**first, "current_host": "algo-10"}


def test_isolation_leads_nowhere_but_to_the_other_hosts(
    desk: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert desk
    calls = fake_engine(engine_script({}))
    monkeypatch.setenv("NETWORK", "none")
    docker.train(["name=alone"])
    assert "--network=none --add-host=algo-1:127.0.0.1" in calls.read_text()
    assert "network create" not in calls.read_text()
    monkeypatch.setenv("HOSTS", "2")
    docker.train(["name=together"])
    assert "network create --internal" in calls.read_text()


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
    with pytest.raises(ContainerError, match="disk is full"):
        docker.train(["name=half"])
    assert "rm --force --volumes 0123" in calls.read_text()
    assert "network rm 4567" in calls.read_text()


def test_ctrl_c_asks_once_and_then_insists(desk: Path, fake_engine: FakeEngine) -> None:
    ready = desk / "ready"
    calls = fake_engine(
        f"""
        case $1 in
            image) echo '[{{"Id": "x"}}]';;
            start) touch {ready}; while [ ! -e {desk}/killed ]; do sleep 0.1; done; exit 137;;
            kill) touch {desk}/killed;;
            inspect) echo '137 false';;
        esac
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "launch.docker", "name=stubborn"],
        cwd=desk,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_until(ready.exists)
    process.send_signal(signal.SIGINT)
    wait_until(lambda: "stop -t 120 stubborn-" in calls.read_text())
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 137
    assert "kill stubborn-" in calls.read_text()


def wait_until(condition: object, seconds: float = 30) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("name", "value"), [("HOSTS", "0"), ("HOSTS", "two"), ("HOSTS", "17"), ("NETWORK", "bridge")]
)
def test_a_setting_that_cannot_be_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ContainerError, match=f"{name}={value}: use"):
        Settings.from_environment()


def test_no_gpu_belongs_to_two_hosts() -> None:
    settings = Settings(hosts=2, gpus=["0", "1", "2"])
    assert settings.gpus_of("algo-1") == ["0", "2"]
    assert settings.gpus_of("algo-2") == ["1"]


def test_folders_become_channels(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    arguments = [f"data.root={tmp_path}/a", f"channel.weights={tmp_path}", "x.y=[1,2]"]
    channels, rest = docker.split_channels(arguments)
    assert channels == {"training": tmp_path / "a", "weights": tmp_path}
    assert rest == ["x.y=[1,2]"]
    assert docker.split_channels(["data.root=null"]) == ({}, ["data.root=null"])
    with pytest.raises(ContainerError, match=r"/nope: no such folder .*channel training"):
        docker.split_channels(["data.root=/nope"])


def test_a_missing_image_is_one_line_and_no_run_folder(
    desk: Path, fake_engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_engine("case $1 in image) echo 'Error: No such image: job:1' >&2; exit 1;; esac")
    assert docker.main(["name=never"]) == 1
    assert capsys.readouterr().err == (
        "docker-train: there is no image job:1: run `make image` first\n"
    )
    assert not (desk / "runs").exists()
