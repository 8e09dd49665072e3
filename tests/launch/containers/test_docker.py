"""How docker-train and docker-serve start, stop and refuse; the engine is a shell script."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from entry_point.job.own_code import PROGRAM
from entry_point.job.program import ExitCode
from launch import docker
from launch.own_code import OwnCode
from tests.launch.conftest import Terminal
from tests.launch.containers.conftest import IDLE, IMAGE, FakeEngine

# A job that runs until `docker run` gets a signal, which it passes on, or until it is killed.
ENDLESS = """
    case $1 in
        image) echo 0123;;
        run)
            trap 'echo stopped; exit 75' TERM
            touch %(folder)s/ready
            while true; do echo a line || exit 1; sleep 0.05; done;;
    esac
"""


def run_line(calls: Path) -> str:
    """The arguments of the newest `docker run`."""
    return [line for line in calls.read_text().splitlines() if line.startswith("run ")][-1]


def refusal(terminal: Terminal, *arguments: str) -> str:
    """The line with which a command is refused."""
    line = terminal.refusal(docker.main, *arguments, code=ExitCode.USAGE)
    assert line.startswith(f"docker-{arguments[0]}: ")
    return line


def test_the_job_gets_its_overrides_as_arguments_and_its_folders_as_mounts(
    start_folder: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = fake_engine(IDLE)
    (photos := start_folder / "my photos").mkdir()
    for name, value in {"GPUS": "2", "NETWORK": "none", "SHM_SIZE": "2g"}.items():
        monkeypatch.setenv(name, value)
    words = [f"data.root={photos}", "name=first", f"channel.more={photos}", "trainer.epochs=1"]
    assert docker.main(["train", *words]) == 0
    run, inside = start_folder / "runs" / "first", "/opt/ml/input/data"
    for option in (
        "--shm-size=2g",
        "--network=none",
        "--gpus=2",
        "--stop-timeout=120",
        f"--user={os.getuid()}:{os.getgid()}",
        f"--mount=type=bind,source={photos},target={inside}/training,readonly",
        f"--mount=type=bind,source={photos},target={inside}/more,readonly",
        f"--mount=type=bind,source={run}/model,target=/opt/ml/model",
        f"--mount=type=bind,source={run}/output,target=/opt/ml/output",
        f"--mount=type=bind,source={run}/checkpoints,target=/opt/ml/checkpoints",
        "--env=TRAINING_JOB_NAME=first",
        "--env=TRAIN_RUN_NAME=first",
    ):
        assert f" {option} " in run_line(calls)
    # data.root is a path on the host; in the container, the data is in the channel.
    assert run_line(calls).endswith(f"{IMAGE} train trainer.epochs=1")
    assert not (run / "input").exists()


def test_a_table_is_read_from_its_folder_and_its_images_from_theirs(
    start_folder: Path, fake_engine: FakeEngine
) -> None:
    calls = fake_engine(IDLE)
    (start_folder / "photos").mkdir()
    (start_folder / "labels.csv").touch()
    table = [f"data.root={start_folder}/labels.csv", f"data.images={start_folder}/photos"]
    assert docker.main(["train", "data=manifest", *table]) == 0
    inside = "/opt/ml/input/data"
    assert run_line(calls).endswith(
        f"train data=manifest data.root={inside}/training/labels.csv data.images={inside}/images"
    )
    assert f"source={start_folder},target={inside}/training,readonly" in run_line(calls)
    (start_folder / "labels, new.csv").touch()
    assert docker.main(["train", f"data.root='{start_folder}/labels, new.csv'"]) == 0
    assert run_line(calls).endswith(f"train data.root='{inside}/training/labels, new.csv'")
    assert docker.main(["train", "data.root=null"]) == 0
    assert run_line(calls).endswith(f"{IMAGE} train data.root=null")
    channel = f"channel.photos={start_folder}/photos"
    assert docker.main(["train", channel, f"data.root={inside}/photos"]) == 0
    assert run_line(calls).endswith(f"{IMAGE} train data.root={inside}/photos")


def test_weights_and_an_index_of_this_machine_are_mounted(
    start_folder: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = fake_engine(IDLE)
    monkeypatch.chdir(start_folder)
    inside = "/opt/ml/input/data"
    for name in ("pretrained", "kept", "index"):
        (start_folder / name).mkdir()
    (start_folder / "kept/w.pth").touch()
    assert docker.main(["train", "model.weights=kept/w.pth", "data.index_root=index"]) == 0
    assert f"source={start_folder}/kept,target={inside}/weights,readonly" in run_line(calls)
    assert f"source={start_folder}/index,target={inside}/index,readonly" in run_line(calls)
    words = f"train model.weights={inside}/weights/w.pth data.index_root={inside}/index"
    assert run_line(calls).endswith(words)
    for words in ("model.weights=pretrained", "experiment=finetune"):
        assert docker.main(["train", words]) == 0
        assert f"source={start_folder}/pretrained,target={inside}/pretrained," in run_line(calls)
        assert run_line(calls).endswith(f"train {words}")
    (start_folder / "mine").mkdir()  # the channel of this name is meant
    assert docker.main(["train", "model.weights=mine", "channel.mine=kept"]) == 0
    assert f"source={start_folder}/kept,target={inside}/mine,readonly" in run_line(calls)
    assert run_line(calls).endswith("train model.weights=mine")


def test_a_folder_is_mounted_whose_path_begins_with_a_tilde_or_has_a_comma(
    start_folder: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = fake_engine(IDLE)
    monkeypatch.setenv("HOME", str(start_folder))
    for name in ("photos", "2024, June", "model"):
        (start_folder / name).mkdir()
    (start_folder / "model/model.safetensors").touch()
    assert docker.main(["train", "data.root=~/photos", "channel.more=~/2024, June"]) == 0
    inside = "/opt/ml/input/data"
    assert f"source={start_folder}/photos,target={inside}/training," in run_line(calls)
    more = f'"source={start_folder}/2024, June",target={inside}/more,readonly '
    assert f"--mount=type=bind,{more}" in run_line(calls)
    quoted = f"data.root='{start_folder}/2024, June'"  # as `local-train` needs it
    assert docker.main(["train", quoted]) == 0
    assert f'"source={start_folder}/2024, June",target={inside}/training,' in run_line(calls)
    assert docker.main(["serve", "model_dir='~/model'"]) == 0
    assert f"source={start_folder}/model,target=/opt/ml/model," in run_line(calls)


def test_a_folder_without_a_model_is_refused_with_the_path_that_was_typed(
    start_folder: Path, fake_engine: FakeEngine, terminal: Terminal
) -> None:
    calls = fake_engine(IDLE)
    run = start_folder / "runs/good"
    (run / "model").mkdir(parents=True)
    (run / "model/model.safetensors").touch()
    line = refusal(terminal, "serve", f"model_dir={run}")
    assert line.endswith(f"model_dir={run}: has no model.safetensors; set {run}/model")
    assert not calls.exists()


def test_own_code_reaches_the_job_as_a_read_only_channel(
    start_folder: Path, fake_engine: FakeEngine, terminal: Terminal
) -> None:
    calls = fake_engine(IDLE)
    out = terminal.out(docker.main, "train", "name=mine", "job.code=true")
    digest = out.split("docker-train: code ")[1].split(":")[0]
    code = start_folder / f"runs/mine/input/data/code-{digest}"
    assert (code / "project/__init__.py").is_file() and (code / "configs").is_dir()
    mount = f"--mount=type=bind,source={code},target=/opt/ml/input/data/code,readonly"
    assert mount in run_line(calls)
    assert f" --env=OWN_CODE={digest} " in run_line(calls)
    terminal.out(docker.main, "train", "name=mine")
    assert "OWN_CODE" not in run_line(calls)
    line = refusal(terminal, "train", "job.code=true", f"channel.code={start_folder}")
    assert "channel.code: job.code=true sends your code in" in line


def test_code_that_is_sent_to_a_running_job_leaves_the_jobs_own_alone(
    start_folder: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_engine(IDLE)
    channels = start_folder / "runs/mine/input/data"
    sent = []
    for content in (b"1", b"2", b"1"):
        code = OwnCode({"project/a.py": content})
        monkeypatch.setattr(docker, "split_code", lambda rest, code=code: (code, [*rest]))
        assert docker.main(["train", "name=mine"]) == 0
        sent.append((channels / f"code-{code.hash}/project/a.py").stat().st_mtime_ns)
    assert sent[0] == sent[2]
    assert len(list(channels.iterdir())) == 2


def test_what_cannot_start_is_one_line_and_leaves_no_run_folder(
    start_folder: Path,
    fake_engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    terminal: Terminal,
) -> None:
    calls = fake_engine(IDLE)
    line = refusal(terminal, "train", "data.root=/nope")
    assert "/nope: no such folder for the channel training" in line
    line = refusal(terminal, "serve")
    assert f"model_dir={start_folder}/runs/latest/model: there is no such folder" in line
    assert "run " not in calls.read_text()
    fake_engine("exit 0")  # lists no image
    (start_folder / "model.safetensors").touch()
    for words in (["train"], ["serve", f"model_dir={start_folder}"]):
        assert f"there is no image {IMAGE}: run `make image IMAGE={IMAGE}` first" in refusal(
            terminal, *words
        )
    fake_engine("echo Cannot connect to the Docker daemon >&2; exit 1")
    assert "docker: Cannot connect to the Docker daemon" in refusal(terminal, "train")
    monkeypatch.setenv("ENGINE", "dcoker --tls")
    assert "ENGINE=dcoker: no such command; install" in refusal(terminal, "train")
    monkeypatch.setenv("HOSTS", "2")
    assert "HOSTS=2: retired: use `docker run`" in refusal(terminal, "train")
    assert not (start_folder / "runs").exists()


def test_the_server_gets_the_model_read_only_and_a_port_of_this_machine_only(
    start_folder: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = fake_engine(IDLE)
    (model := start_folder / "my model").mkdir()
    (model / "model.safetensors").touch()
    assert docker.main(["serve", f"model_dir={model}", "serve.max_batch=4"]) == 0
    for option in (
        "--publish=127.0.0.1:8080:8080",
        "--env=SAGEMAKER_BIND_TO_PORT=8080",
        f"--mount=type=bind,source={model},target=/opt/ml/model,readonly",
        "--read-only",
        "--stop-timeout=30",
        f"--user={os.getuid()}:{os.getgid()}",
    ):
        assert f" {option} " in run_line(calls)
    assert run_line(calls).endswith(f"{IMAGE} serve serve.max_batch=4")
    monkeypatch.setenv("NETWORK", "host")
    monkeypatch.setenv("PORT", "9000")
    assert docker.main(["serve", f"model_dir={model}"]) == 0
    assert "--network=host --env=SAGEMAKER_BIND_TO_PORT=9000" in run_line(calls)


def test_the_newest_finished_run_is_served_and_a_refused_one_leaves_nothing(
    start_folder: Path, fake_engine: FakeEngine
) -> None:
    runs = start_folder / "runs"
    fake_engine(IDLE)
    assert docker.main(["train", "name=good"]) == 0
    for code in (2, 125):  # the job's, and of `docker run` for GPUs that it does not have
        fake_engine(IDLE.replace("exit 0", f"exit {code}"))
        for name in ("new", "good"):
            assert docker.main(["train", f"name={name}"]) == code
    assert sorted(run.name for run in runs.iterdir()) == ["good", "latest"]
    calls = fake_engine(IDLE)
    (runs / "good/model/model.safetensors").touch()
    assert docker.main(["serve"]) == 0
    assert f"source={runs}/good/model,target=/opt/ml/model" in run_line(calls)


def test_the_log_is_printed_and_the_exit_code_is_the_containers(
    start_folder: Path, fake_engine: FakeEngine, terminal: Terminal
) -> None:
    for code, is_told in {7: False, 137: True}.items():
        calls = fake_engine(IDLE.replace("exit 0", f"echo a line of the job; exit {code}"))
        assert docker.main(["train", "name=one"]) == code
        out = terminal.capture.readouterr().out
        assert "\na line of the job\n" in out
        assert ("was killed, as when it runs out of memory: " in out) is is_told
    assert "\nrm --force --volumes one-" in calls.read_text()
    assert not (start_folder / "runs/latest").exists()


def launch(start_folder: Path, name: str) -> subprocess.Popen[str]:
    """Start docker-train as a process, with its output in a pipe."""
    process = subprocess.Popen(
        [sys.executable, "-m", "launch.docker", "train", f"name={name}"],
        cwd=start_folder,
        env={**os.environ, "PYTHONPATH": str(PROGRAM)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 30
    while not (start_folder / "ready").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_stops_the_job(
    start_folder: Path, fake_engine: FakeEngine, number: int
) -> None:
    fake_engine(ENDLESS % {"folder": start_folder})
    process = launch(start_folder, "gentle")
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == ExitCode.STOPPED
    assert "\nstopped\n" in out and "exit code 75" in out


def test_a_signal_that_comes_while_the_container_is_started_stops_it(
    start_folder: Path, fake_engine: FakeEngine
) -> None:
    """The engine sends it as soon as it runs, before it is asked for anything else."""
    calls = fake_engine("case $1 in image) echo 0123;; run) kill -HUP $PPID; exec sleep 60;; esac")
    done = subprocess.run(
        [sys.executable, "-m", "launch.docker", "train", "name=early"],
        cwd=start_folder,
        env={**os.environ, "PYTHONPATH": str(PROGRAM)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert "\nrm --force --volumes early-" in calls.read_text()


def test_the_second_signal_kills_it(start_folder: Path, fake_engine: FakeEngine) -> None:
    stubborn = ENDLESS.replace("echo stopped; exit 75", "echo stopping")
    calls = fake_engine(stubborn % {"folder": start_folder})
    process = launch(start_folder, "stubborn")
    assert process.stdout
    process.send_signal(signal.SIGINT)
    while process.stdout.readline() != "stopping\n":
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 128 + signal.SIGKILL
    assert "out of memory" not in process.stdout.read()
    assert "\nrm --force --volumes stubborn-" in calls.read_text()
    assert "\nstop " not in calls.read_text()


def test_a_job_is_stopped_when_its_output_pipe_closes(
    start_folder: Path, fake_engine: FakeEngine
) -> None:
    calls = fake_engine(ENDLESS % {"folder": start_folder})
    process = launch(start_folder, "headless")
    assert process.stdout
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(30) == ExitCode.NO_READER
    assert "\nstop headless-" in calls.read_text()


def test_docker_train_needs_only_pythons_standard_library() -> None:
    command = [sys.executable, "-S", "-c", "import launch.docker"]
    done = subprocess.run(command, cwd=PROGRAM, capture_output=True, text=True)
    assert not done.returncode, done.stderr
