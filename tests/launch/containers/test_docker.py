"""How docker-train sets up the hosts of a job; the engine is a shell script."""

import json
import os
from pathlib import Path

import pytest
from filelock import FileLock

from entry_point.contract.run_folder import RunBusyError, RunFolder
from launch import docker
from launch.command_line import LaunchError
from launch.containers import gpus as gpus_module
from launch.containers.engine import Engine
from launch.containers.run_options import bind, owner_options
from launch.docker import Settings
from tests.launch.containers.conftest import IDLE, IMAGE, FakeEngine


def test_one_host_gets_everything_that_sagemaker_provides(
    start_folder: Path, fake_engine: FakeEngine, tmp_path: Path
) -> None:
    calls = fake_engine(IDLE)
    photos = tmp_path / "my photos"
    photos.mkdir()
    assert docker.train([f"data.root={photos}", "name=first", "trainer.epochs=1"]) == 0
    (create,) = [line for line in calls.read_text().splitlines() if line.startswith("create")]
    run = start_folder / "runs" / "first"
    for option in (
        "--hostname=algo-1",
        "--network-alias=algo-1",
        "--shm-size=1g",
        "--stop-timeout=120",
        f"--user={os.getuid()}:{os.getgid()}",
        f"--mount=type=bind,source={run}/input,target=/opt/ml/input,readonly",
        f"--mount=type=bind,source={photos},target=/opt/ml/input/data/training,readonly",
        f"--mount=type=bind,source={run}/model,target=/opt/ml/model",
        f"--mount=type=bind,source={run}/output,target=/opt/ml/output",
        f"--mount=type=bind,source={run}/checkpoints,target=/opt/ml/checkpoints",
        "--env=TRAINING_JOB_NAME=first",
    ):
        assert option in create
    assert create.endswith(f"{IMAGE} train")
    config = run / "input/config"
    assert json.loads((config / "inputdataconfig.json").read_text())["training"]
    hyperparameters = json.loads((config / "hyperparameters.json").read_text())
    # data.root is a path on the host; in the container, the data is in the channel.
    assert hyperparameters == {"trainer.epochs": "1"}


def test_each_host_gets_its_own_name_and_the_same_host_order(
    start_folder: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_engine(IDLE)
    monkeypatch.setenv("HOSTS", "11")
    assert docker.train(["name=many"]) == 0
    run = start_folder / "runs" / "many"
    first = json.loads((run / "input/config/resourceconfig.json").read_text())
    assert first["current_host"] == "algo-1"
    assert first["hosts"][:3] == ["algo-1", "algo-10", "algo-11"]
    other = run / "hosts/algo-10/input/config/resourceconfig.json"
    assert json.loads(other.read_text()) == {**first, "current_host": "algo-10"}


def test_own_code_reaches_every_host_as_a_read_only_channel(
    start_folder: Path,
    fake_engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls = fake_engine(IDLE)
    monkeypatch.setenv("HOSTS", "2")
    assert docker.train(["name=mine", "job.code=true"]) == 0
    run = start_folder / "runs/mine"
    for folder in (run, run / "hosts/algo-2"):
        code = folder / "input/data/code"
        assert (code / "project/__init__.py").is_file() and (code / "configs").is_dir()
        channels = json.loads((folder / "input/config/inputdataconfig.json").read_text())
        assert "code" in channels
    created = [line for line in calls.read_text().splitlines() if line.startswith("create")]
    digest = capsys.readouterr().out.split("docker-train: code ")[1].split(":")[0]
    assert len(created) == 2 and all(f"--env=OWN_CODE={digest}" in line for line in created)
    docker.train(["name=mine"])
    assert "OWN_CODE" not in calls.read_text().splitlines()[-1]
    other = start_folder / "other"
    other.mkdir()
    with pytest.raises(LaunchError, match=r"channel\.code: job\.code=true sends your code in"):
        docker.train(["job.code=true", f"channel.code={other}"])


def test_isolated_hosts_reach_only_each_other(
    start_folder: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert start_folder
    calls = fake_engine(IDLE)
    monkeypatch.setenv("NETWORK", "none")
    docker.train(["name=alone"])
    assert "--network=none --add-host=algo-1:127.0.0.1" in calls.read_text()
    assert "network create" not in calls.read_text()
    monkeypatch.setenv("HOSTS", "2")
    docker.train(["name=together"])
    assert "network create --internal" in calls.read_text()


def test_the_folder_of_a_running_job_is_refused_and_unchanged(
    start_folder: Path, fake_engine: FakeEngine
) -> None:
    calls = fake_engine(IDLE)
    run = RunFolder(start_folder / "runs/busy")
    run.output.mkdir(parents=True)
    with (
        FileLock(run.lock),
        pytest.raises(RunBusyError, match=r"another process is training in .*busy"),
    ):
        docker.train(["name=busy"])
    assert not (start_folder / "runs/busy/input/config").exists()
    assert "create" not in calls.read_text()
    assert docker.train(["name=busy"]) == 0


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        (Engine(("docker",)), ["--user={user}"]),
        (Engine(("docker",), is_rootless=True), ["--user=0:0"]),
        (
            Engine(("sudo", "podman"), is_podman=True),
            ["--user={user}", "--security-opt=label=disable"],
        ),
        (
            Engine(("docker",), is_podman=True, is_rootless=True),
            ["--userns=keep-id", "--user={user}", "--security-opt=label=disable"],
        ),
    ],
)
def test_files_of_a_job_belong_to_its_user_under_every_engine(
    engine: Engine, expected: list[str]
) -> None:
    user = f"{os.getuid()}:{os.getgid()}"
    assert owner_options(engine) == [option.format(user=user) for option in expected]


def test_a_folder_with_any_name_can_be_mounted() -> None:
    assert bind(Path("/a:b"), "/c") == "--mount=type=bind,source=/a:b,target=/c"
    assert bind(Path('/a,"b'), "/c", "readonly") == (
        '--mount=type=bind,"source=/a,""b",target=/c,readonly'
    )


def test_nproc_reaches_the_job(
    start_folder: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_engine(IDLE)
    monkeypatch.setenv("NPROC", "3")
    assert docker.train(["name=three"]) == 0
    text = (start_folder / "runs/three/input/config/hyperparameters.json").read_text()
    assert json.loads(text) == {"trainer.nproc_per_host": "3"}


@pytest.mark.parametrize(
    ("name", "value"), [("HOSTS", "0"), ("HOSTS", "two"), ("HOSTS", "17"), ("NETWORK", "bridge")]
)
def test_an_invalid_setting_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(LaunchError, match=f"{name}={value}: must be"):
        Settings.from_environment()


def gpus(monkeypatch: pytest.MonkeyPatch, count: int, wanted: str, hosts: int) -> Settings:
    monkeypatch.setattr(gpus_module, "find_gpus", lambda: [str(index) for index in range(count)])
    monkeypatch.setenv("GPUS", wanted)
    monkeypatch.setenv("HOSTS", str(hosts))
    return Settings.from_environment()


def test_every_host_gets_the_same_number_of_gpus_and_shares_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = gpus(monkeypatch, 5, "", hosts=2)
    assert settings.gpus_of("algo-1") == ["0", "1"]
    assert settings.gpus_of("algo-2") == ["2", "3"]


def test_gpus_sets_the_number_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpus(monkeypatch, 4, "2", hosts=1).gpus == ["0", "1"]
    assert gpus(monkeypatch, 4, "0", hosts=2).gpus == []
    assert gpus(monkeypatch, 0, "", hosts=2).gpus == []
    for wrong in ("none", "5", "-1"):
        with pytest.raises(LaunchError, match=f"GPUS={wrong}: must be a number from 0 to 4"):
            gpus(monkeypatch, 4, wrong, hosts=1)


def test_fewer_gpus_than_hosts_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(LaunchError, match=r"HOSTS=2: needs at least 2 GPUs, .* only 1 .*GPUS=0"):
        gpus(monkeypatch, 1, "", hosts=2)


def test_podman_without_dns_is_refused_for_several_hosts(
    start_folder: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert start_folder
    calls = fake_engine(
        f"""
        case $1 in
            info) echo '{{"host": {{}}}}'; exit;;
            network) [ $2 = inspect ] && {{ echo false; exit; }};;
        esac
        {IDLE}"""
    )
    monkeypatch.setenv("HOSTS", "2")
    with pytest.raises(LaunchError, match="install netavark"):
        docker.train(["name=nameless"])
    assert "\ncreate " not in calls.read_text()


def test_folders_become_channels(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    arguments = [f"data.root={tmp_path}/a", f"channel.weights={tmp_path}", "x.y=[1,2]"]
    channels, rest = docker.split_channels(arguments)
    assert channels == {"training": tmp_path / "a", "weights": tmp_path}
    assert rest == ["x.y=[1,2]"]
    assert docker.split_channels(["data.root=null"]) == ({}, ["data.root=null"])
    with pytest.raises(LaunchError, match=r"/nope: no such folder for the channel training"):
        docker.split_channels(["data.root=/nope"])


def test_a_missing_image_is_one_line_and_leaves_no_run_folder(
    start_folder: Path, fake_engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_engine("case $1 in image) echo 'Error: No such image: job:1' >&2; exit 1;; esac")
    assert docker.main(["name=never"]) == 1
    assert capsys.readouterr().err == (
        "docker-train: there is no image job:1: run `make image` first\n"
    )
    assert not (start_folder / "runs").exists()
