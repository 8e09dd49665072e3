"""How docker-train and docker-serve set up containers; the engine is a shell script."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from entry_point.job.own_code import PROGRAM
from entry_point.job.program import ExitCode, UserError
from entry_point.job.run_folder import RunBusyError, RunFolder
from launch import docker, image
from launch.docker import owner_options, split_channels
from launch.engine import Engine
from tests.launch.containers.conftest import IDLE, IMAGE, FakeEngine


def test_the_job_gets_its_overrides_as_arguments_and_its_folders_as_mounts(
    start_folder: Path, fake_engine: FakeEngine, tmp_path: Path
) -> None:
    calls = fake_engine(IDLE)
    photos = tmp_path / "my photos"
    photos.mkdir()
    assert docker.train([f"data.root={photos}", "name=first", "trainer.epochs=1"]) == 0
    (create,) = [line for line in calls.read_text().splitlines() if line.startswith("run")]
    run = start_folder / "runs" / "first"
    for option in (
        "--shm-size=1g",
        "--stop-timeout=120",
        f"--user={os.getuid()}:{os.getgid()}",
        f"--mount=type=bind,source={photos},target=/opt/ml/input/data/training,readonly",
        f"--mount=type=bind,source={run}/model,target=/opt/ml/model",
        f"--mount=type=bind,source={run}/output,target=/opt/ml/output",
        f"--mount=type=bind,source={run}/checkpoints,target=/opt/ml/checkpoints",
        "--env=TRAINING_JOB_NAME=first",
        "--env=TRAIN_RUN_NAME=first",
    ):
        assert option in create
    # data.root is a path on the host; in the container, the data is in the channel.
    assert create.endswith(f"{IMAGE} train trainer.epochs=1")
    assert not (run / "input").exists()


def test_own_code_reaches_the_job_as_a_read_only_channel(
    start_folder: Path, fake_engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = fake_engine(IDLE)
    assert docker.train(["name=mine", "job.code=true"]) == 0
    code = start_folder / "runs/mine/input/data/code"
    assert (code / "project/__init__.py").is_file() and (code / "configs").is_dir()
    mount = f"--mount=type=bind,source={code},target=/opt/ml/input/data/code,readonly"
    assert mount in calls.read_text()
    digest = capsys.readouterr().out.split("docker-train: code ")[1].split(":")[0]
    assert calls.read_text().count(f"--env=OWN_CODE={digest} ") == 1
    docker.train(["name=mine"])
    assert calls.read_text().count("OWN_CODE") == 1
    other = start_folder / "other"
    other.mkdir()
    with pytest.raises(UserError, match=r"channel\.code: job\.code=true sends your code in"):
        docker.train(["job.code=true", f"channel.code={other}"])


def test_an_isolated_job_has_no_network(
    start_folder: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert start_folder
    calls = fake_engine(IDLE)
    monkeypatch.setenv("NETWORK", "none")
    docker.train(["name=alone"])
    assert " --network=none " in calls.read_text()


def test_several_hosts_are_retired(
    start_folder: Path,
    fake_engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls = fake_engine(IDLE)
    monkeypatch.setenv("HOSTS", "2")
    assert docker.main(["train", "name=two"]) == ExitCode.USAGE
    err = capsys.readouterr().err
    assert err.startswith("docker-train: HOSTS=2: retired: use `docker run`")
    assert err.count("\n") == 1 and not calls.exists() and not (start_folder / "runs").exists()


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
    assert not (start_folder / "runs/busy/model").exists()
    assert "run " not in calls.read_text()
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
            ["--user=0:0", "--security-opt=label=disable"],
        ),
    ],
)
def test_files_of_a_job_belong_to_its_user_under_every_engine(
    engine: Engine, expected: list[str]
) -> None:
    user = f"{os.getuid()}:{os.getgid()}"
    assert owner_options(engine) == [option.format(user=user) for option in expected]


@pytest.mark.parametrize(
    ("name", "value"),
    [("NETWORK", "bridge"), ("GPUS", "none")],
)
def test_an_invalid_setting_is_named(
    start_folder: Path,
    fake_engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
) -> None:
    assert start_folder
    fake_engine(IDLE)
    monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=f"{name}={value}: must be"):
        docker.train([])


@pytest.mark.parametrize(
    ("gpus", "expected"), [("all", ["--gpus=all"]), ("2", ["--gpus=2"]), ("0", [])]
)
def test_gpus_is_passed_to_the_engine(
    monkeypatch: pytest.MonkeyPatch, gpus: str, expected: list[str]
) -> None:
    monkeypatch.setenv("GPUS", gpus)
    assert docker.gpu_options() == expected


def test_folders_become_channels(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    arguments = [f"data.root={tmp_path}/a", f"channel.weights={tmp_path}", "x.y=[1,2]"]
    channels, rest = split_channels(arguments)
    assert channels == {"training": tmp_path / "a", "weights": tmp_path}
    assert rest == ["x.y=[1,2]"]
    assert split_channels(["data.root=null"]) == ({}, ["data.root=null"])
    with pytest.raises(UserError, match=r"/nope: no such folder for the channel training"):
        split_channels(["data.root=/nope"])


def test_a_table_is_read_from_its_folder_and_its_images_from_theirs(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "labels.csv").touch()
    channels, overrides = split_channels(
        ["data=manifest", f"data.root={tmp_path}/labels.csv", f"data.images={tmp_path}/photos"]
    )
    assert channels == {"training": tmp_path, "images": tmp_path / "photos"}
    assert overrides == [
        "data=manifest",
        "data.root=/opt/ml/input/data/training/labels.csv",
        "data.images=/opt/ml/input/data/images",
    ]


@pytest.mark.parametrize("command", ["train", "serve"])
def test_a_missing_image_is_one_line_and_leaves_no_run_folder(
    start_folder: Path,
    model: Path,
    fake_engine: FakeEngine,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    fake_engine("case $1 in image) echo 'Error: No such image: job:1' >&2; exit 1;; esac")
    words = ["name=never"] if command == "train" else [f"model_dir={model}"]
    assert docker.main([command, *words]) == ExitCode.USAGE
    assert capsys.readouterr().err == (
        f"docker-{command}: there is no image job:1: run `make image` first\n"
    )
    assert not (start_folder / "runs").exists()


def test_an_image_of_another_state_of_the_tree_is_named(
    start_folder: Path, fake_engine: FakeEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    assert start_folder
    labels = json.dumps({"Labels": {image.REVISION_LABEL: "0123456789ab"}})
    fake_engine(IDLE.replace("{}", labels))
    assert docker.train(["name=old"]) == 0
    assert f"{IMAGE} was built from 0123456789ab; `make image`" in capfd.readouterr().out


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "my model").mkdir()
    return tmp_path / "my model"


def test_the_server_gets_the_model_read_only_and_a_port_of_this_machine_only(
    start_folder: Path, fake_engine: FakeEngine, model: Path
) -> None:
    assert start_folder
    calls = fake_engine(IDLE)
    assert docker.main(["serve", f"model_dir={model}", "serve.max_batch=4"]) == 0
    (run,) = [line for line in calls.read_text().splitlines() if line.startswith("run")]
    for option in (
        "--publish=127.0.0.1:8080:8080",
        "--env=SAGEMAKER_BIND_TO_PORT=8080",
        f"--mount=type=bind,source={model},target=/opt/ml/model,readonly",
        "--read-only",
        "--stop-timeout=30",
        f"--user={os.getuid()}:{os.getgid()}",
    ):
        assert option in run
    assert run.endswith(f"{IMAGE} serve serve.max_batch=4")


def test_the_hosts_network_needs_no_published_port(
    start_folder: Path, fake_engine: FakeEngine, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert start_folder
    calls = fake_engine(IDLE)
    monkeypatch.setenv("NETWORK", "host")
    monkeypatch.setenv("PORT", "9000")
    assert docker.main(["serve", f"model_dir={model}"]) == 0
    assert "--network=host --env=SAGEMAKER_BIND_TO_PORT=9000" in calls.read_text()


def test_the_newest_run_is_served_unless_a_model_is_named(
    start_folder: Path, fake_engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = fake_engine(IDLE)
    assert docker.main(["serve"]) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert error.startswith(
        f"docker-serve: model_dir={start_folder}/runs/latest/model: there is no"
    )
    assert error.count("\n") == 1 and not calls.exists()
    assert docker.train(["name=newest"]) == 0
    assert docker.main(["serve"]) == 0
    assert f"source={start_folder}/runs/newest/model,target=/opt/ml/model" in calls.read_text()


def test_a_refused_run_is_removed_and_not_the_newest(
    start_folder: Path, fake_engine: FakeEngine
) -> None:
    fake_engine(IDLE.replace("exit 0", "exit 2"))
    runs = start_folder / "runs"
    (runs / "old").mkdir(parents=True)
    (runs / "latest").symlink_to("old")
    for name in ("new", "old"):
        assert docker.train([f"name={name}"]) == 2
    assert sorted(run.name for run in runs.iterdir()) == ["latest", "old"]
    assert (runs / "latest").resolve() == runs / "old"


def test_docker_train_needs_only_pythons_standard_library() -> None:
    command = [sys.executable, "-S", "-c", "import launch.docker"]
    done = subprocess.run(command, cwd=PROGRAM, capture_output=True, text=True)
    assert not done.returncode, done.stderr
