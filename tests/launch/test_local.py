"""Local runs: one folder per run, a link to the newest, an earlier run by its name; early stops."""

import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from filelock import FileLock

from entry_point.job import run_folder
from entry_point.job.program import ExitCode, UserError
from launch import local
from tests import forkserver
from tests.entry_point.job.test_processes import wait_for_steps
from tests.entry_point.job.test_signals import wait_for_sigterm_handler
from tests.entry_point.training import forked_ranks
from tests.forkserver import Program
from tests.photographs import write_photo_folder
from tests.platform_files import write_input_config

ROOT = Path(__file__).resolve().parents[2]
JOB = (
    "data=folder",
    "data.root=photos",
    "data.image_size=32",
    "data.resize=32",
    "model.name=tests.own_models.tiny_net",
    "pipeline=pillow",
    "pipeline.num_workers=0",
    "trainer.device=cpu",
    "trainer.batch_size=4",
    "trainer.report=false",
    "trainer.epochs=1",
    "optim.warmup_epochs=0",
)
ENDLESS = (*JOB, "trainer.epochs=100000", "trainer.log_every_steps=1")


@pytest.fixture(scope="module")
def start_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder to start runs in, with photographs."""
    folder = tmp_path_factory.mktemp("start")
    write_photo_folder(folder / "photos", train=1, val=1, shrink=2)
    return folder


def local_train(folder: Path, *arguments: str) -> tuple[int, str]:
    """The exit code and the output of the program."""
    (log := folder / "log").unlink(missing_ok=True)
    process = start_local_train(folder, log, *arguments)
    output, _ = process.communicate(timeout=240)
    return process.wait(), output


def start_local_train(folder: Path, log: Path, *arguments: str) -> Program:
    """Start the program, which becomes the job without an exec."""
    prepare = partial(_without_exec, folder)
    return forkserver.start(["-m", "launch.local", *arguments], log, prepare=prepare)


def _without_exec(folder: Path) -> None:
    os.chdir(folder)
    forked_ranks.prepare()
    os.execv = _become  # type: ignore[assignment]


def _become(_: str, command: list[str]) -> None:
    forkserver.run(command[1:])


def test_a_named_run_resumes_under_its_name_and_the_newest_with_a_model_is_the_latest(
    start_folder: Path,
) -> None:
    runs = start_folder / "runs"
    code, output = local_train(start_folder, "name=first", *JOB)
    assert code == 0, output
    assert (runs / "latest").resolve() == runs / "first"
    assert (runs / "latest/model/model.safetensors").is_file()
    failing = (*JOB, "model.name=tests.own_models.useless_net")
    assert local_train(start_folder, "name=second", *failing)[0] == 1
    assert (runs / "latest").resolve() == runs / "first"
    code, output = local_train(start_folder, "name=second", *JOB)
    assert code == 0, output
    assert (runs / "latest").resolve() == runs / "second"
    code, output = local_train(start_folder, "name=first", *JOB, "trainer.epochs=2")
    assert code == 0, output
    epochs = [line.split()[1] for line in output.splitlines() if "val_loss=" in line]
    assert epochs == ["epoch=1"]


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ([], "data.root=nowhere"),
        (["name=new"], "model.weights=nowhere.pt"),
        (["name=earlier"], "model.name=no_such_net"),
    ],
)
def test_a_refused_run_names_what_is_wrong_leaves_no_new_folder_and_keeps_an_earlier_one(
    name: list[str], refused: str, start_folder: Path
) -> None:
    earlier = start_folder / "runs" / "earlier"
    earlier.mkdir(parents=True, exist_ok=True)
    before = {run.name for run in earlier.parent.iterdir()}
    code, output = local_train(start_folder, *name, *JOB, refused)
    assert code == ExitCode.USAGE, output
    assert refused.partition("=")[2] in output and "Traceback" not in output
    assert {run.name for run in earlier.parent.iterdir()} == before


@pytest.mark.parametrize("kept", ["checkpoints/step-000000001.pt", "checkpoints/metrics.jsonl"])
def test_a_run_that_has_trained_is_not_removed(tmp_path: Path, kept: str) -> None:
    run = run_folder.RunFolder(tmp_path / "run")
    run.create()
    (run.root / kept).write_text("{}")
    run.remove_refused()
    assert (run.root / kept).is_file()
    (run.root / kept).unlink()
    run.remove_refused()
    assert not run.root.exists()


def test_a_missing_compiler_is_answered_with_what_to_install(
    start_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/no/compiler")
    code, output = local_train(start_folder, "name=bare", *JOB, "pipeline=threads")
    assert code == ExitCode.USAGE, output
    assert "CXX=/no/compiler: no such program" in output
    assert "apt-get install g++" in output and "Traceback" not in output


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("trainer.epoch=1", "trainer.epoch=1: no such key"),
        ("--multirun", "--multirun: not an override"),
        ("trainer.nproc_per_host=3", "trainer.batch_size=32: must be a multiple of 3, ranks=3"),
    ],
)
def test_a_mistyped_argument_is_one_line_and_leaves_no_run(
    tmp_path: Path, argument: str, message: str
) -> None:
    code, output = local_train(tmp_path, argument)
    assert code == ExitCode.USAGE, output
    assert message in output and output.startswith("train: ") and output.count("\n") == 1
    assert not list((tmp_path / "runs").iterdir())


def test_a_second_run_of_a_busy_name_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    output = tmp_path / "runs" / "busy" / "output"
    output.mkdir(parents=True)
    with FileLock(output / "lock"):
        code, said = local_train(tmp_path, "name=busy")
    assert code == ExitCode.USAGE
    assert said.startswith(f"train: another process is training in {tmp_path}/runs/busy; wait")
    assert said.count("\n") == 1
    left = [str(path.relative_to(tmp_path)) for path in (tmp_path / "runs").rglob("*")]
    assert sorted(left) == ["runs/busy", "runs/busy/output", "runs/busy/output/lock"]


def test_a_run_of_version_1_is_resumed_with_the_overrides_of_the_command(
    start_folder: Path,
) -> None:
    """Version 1 kept a run's overrides in SageMaker's files, and wrote them at each start."""
    old = ["data.root=gone", "trainer.epochs=7", "optim.lr=0.5"]
    write_input_config(start_folder / "runs" / "old", old)
    code, output = local_train(start_folder, "name=old", *JOB)
    assert code == 0, output
    config = (start_folder / "runs" / "old" / "model" / "config.yaml").read_text()
    assert "epochs: 1\n" in config and "lr: 0.03\n" in config


@pytest.mark.parametrize(
    "name", ["with space", "", "-x", "a" * 64, "../up", "under_score", "latest"]
)
def test_an_invalid_or_reserved_run_name_is_refused(name: str) -> None:
    reason = "reserved for the link" if name == "latest" else "must be 1 to 63"
    with pytest.raises(UserError, match=f"name={re.escape(name)}: {reason}"):
        local.split_name([f"name={name}"])


def test_overrides_reach_the_job_unchanged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ML_ROOT", run_folder.LINK_LATEST, run_folder.NEW_RUN, run_folder.RUN_NAME):
        monkeypatch.setenv(name, "")  # what the launcher sets goes with the test
    commands: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, command: commands.append(command))
    monkeypatch.setattr(local, "defer_stop", lambda: None)
    overrides = ["data.root=a b", "model.name=x$y", "data.classes=[a,'b c']", 'a="b"', "name_of=ü"]
    local.start(["name=x", *overrides])
    assert commands[0][1:] == ["-m", "entry_point", "train", *overrides]


def test_runs_started_in_the_same_second_get_separate_folders(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = {local.create_run_folder(None)[0] for _ in range(5)}
    assert len(folders) == 5


# Stops


def test_a_stopped_run_leaves_a_model_and_only_a_finished_one_becomes_the_latest(
    start_folder: Path, tmp_path: Path
) -> None:
    run, latest = start_folder / "runs" / "by-hand", start_folder / "runs" / "latest"
    before = latest.resolve()
    process = start_local_train(start_folder, tmp_path / "log", f"name={run.name}", *ENDLESS)
    wait_for_steps(run, process, 4)  # more than an epoch
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == ExitCode.STOPPED, output
    assert (run / "model" / "model.safetensors").is_file()
    assert latest.resolve() == before


def start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Start the program in a new interpreter, which it replaces by another for the job."""
    return subprocess.Popen(
        [sys.executable, "-m", "launch.local", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize(
    ("delay", "number"),
    [(0.05, signal.SIGTERM), (0.4, signal.SIGINT), (0.8, signal.SIGHUP), (1.2, signal.SIGTERM)],
)
def test_a_stop_at_any_moment_of_the_start_leaves_no_traceback_and_is_not_the_latest(
    delay: float, number: signal.Signals, start_folder: Path
) -> None:
    run = start_folder / "runs" / f"stopped-{round(delay * 100)}"
    process = start(start_folder, f"name={run.name}", *ENDLESS)
    wait_for_sigterm_handler(process.pid)
    time.sleep(delay)
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == ExitCode.STOPPED, output
    assert "Traceback" not in output and "KeyboardInterrupt" not in output
    assert (run.parent / "latest").resolve() != run


def test_what_an_interrupted_run_names_resumes_it(start_folder: Path, tmp_path: Path) -> None:
    before = {run.name for run in (start_folder / "runs").glob("*")}
    process = start(start_folder, *ENDLESS)
    for line in process.stdout or ():
        if "step=3 " in line:
            break
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == ExitCode.STOPPED, output
    name = re.search(r"the same command with (name=\S+) resumes from here", output)
    assert name, output
    (run,) = (run for run in (start_folder / "runs").glob("*") if run.name not in before)
    assert run.name == name[1].removeprefix("name=")
    again = start_local_train(start_folder, log := tmp_path / "log", *ENDLESS, name[1])
    while not (begins := re.search(r"^start .*\n", log.read_text(), re.MULTILINE)):
        assert again.poll() is None, log.read_text()
        time.sleep(0.01)
    again.kill()
    assert "epoch 0, step 0;" not in begins[0] and str(run) in begins[0]
