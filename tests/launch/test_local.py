"""Local runs: one folder per run, a link to the newest, an earlier run by its name."""

import os
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from PIL import Image

from entry_point.job import run_folder
from entry_point.job.program import UserError
from launch import local
from tests import forkserver
from tests.entry_point.training import forked_ranks
from tests.forkserver import Program
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
    "optim.warmup_epochs=0",
)


@pytest.fixture(scope="module")
def start_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder to start runs in, with eight small JPEGs of two classes."""
    folder = tmp_path_factory.mktemp("start")
    draw = np.random.default_rng(0)
    for split in ("train", "val"):
        for label in ("dark", "light"):
            (folder / "photos" / split / label).mkdir(parents=True)
            for number in range(2):
                pixels = draw.integers(0, 128, (48, 64, 3)) + 127 * (label == "light")
                target = folder / "photos" / split / label / f"{number}.jpg"
                Image.fromarray(pixels.astype(np.uint8)).save(target)
    return folder


def local_train(start_folder: Path, *arguments: str) -> tuple[int, str]:
    """The exit code and the output of the program."""
    (log := start_folder / "log").unlink(missing_ok=True)
    process = start_local_train(start_folder, log, *arguments)
    output, _ = process.communicate(timeout=240)
    return process.wait(), output


def start_local_train(start_folder: Path, log: Path, *arguments: str) -> Program:
    """Start the program, which becomes the job without an exec."""
    prepare = partial(_without_exec, start_folder)
    return forkserver.start(["-m", "launch.local", *arguments], log, prepare=prepare)


def _without_exec(start_folder: Path) -> None:
    os.chdir(start_folder)
    forked_ranks.prepare()
    os.execv = _become  # type: ignore[assignment]


def _become(_: str, command: list[str]) -> None:
    forkserver.run(command[1:])


def test_a_named_run_has_a_folder_and_resumes_under_the_same_name(start_folder: Path) -> None:
    code, output = local_train(start_folder, "name=first", *JOB, "trainer.epochs=1")
    assert code == 0, output
    assert (start_folder / "runs" / "latest").resolve() == start_folder / "runs" / "first"
    assert (start_folder / "runs" / "latest" / "model" / "model.safetensors").is_file()
    code, output = local_train(start_folder, "name=first", *JOB, "trainer.epochs=2")
    assert code == 0, output
    epochs = [line.split()[1] for line in output.splitlines() if "val_loss=" in line]
    assert epochs == ["epoch=1"]


def test_missing_data_is_one_line_that_names_it(start_folder: Path) -> None:
    code, output = local_train(start_folder, "name=wrong", *JOB, "data.root=nowhere")
    assert code == 2, output
    assert "nowhere" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    "refused", ["data.root=nowhere", "model.weights=nowhere.pt", "model.name=no_such_net"]
)
@pytest.mark.parametrize("name", [[], ["name=new"]])
def test_a_refused_run_leaves_no_new_folder_and_keeps_an_earlier_one(
    name: list[str], refused: str, start_folder: Path
) -> None:
    earlier = start_folder / "runs" / "earlier"
    earlier.mkdir(parents=True, exist_ok=True)
    before = {run.name for run in earlier.parent.iterdir()}
    for names in (name, ["name=earlier"]):
        code, output = local_train(start_folder, *names, *JOB, refused)
        assert code == 2, output
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
    assert code == 2, output
    assert "CXX=/no/compiler: no such program" in output
    assert "apt-get install g++" in output and "Traceback" not in output


def test_latest_is_the_newest_run_that_has_a_model(start_folder: Path) -> None:
    latest = start_folder / "runs" / "latest"
    failing = "model.name=tests.own_models.useless_net"
    missing = "data.root=nowhere"
    starts = (("good", (), 0), ("bad", (failing,), 1), ("absent", (missing,), 2), ("better", (), 0))
    for name, more, code in starts:
        newest = latest.resolve()
        found, output = local_train(start_folder, f"name={name}", *JOB, "trainer.epochs=1", *more)
        assert found == code, output
        assert latest.resolve() == (newest if code else start_folder / "runs" / name)
    code, output = local_train(start_folder, "name=bad", *JOB, "trainer.epochs=1")
    assert code == 0, output


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("trainer.epoch=1", "trainer.epoch=1: no such key"),
        ("trainer.epochs=0", "trainer.epochs=0: Input should be"),
        ("model=resnet81", "did you mean resnet18"),
        ("--multirun", "--multirun: not an override"),
        ("trainer.nproc_per_host=3", "trainer.batch_size=32: must be a multiple of the 3 ranks"),
    ],
)
def test_a_mistyped_argument_is_one_line_and_leaves_no_run(
    tmp_path: Path, argument: str, message: str
) -> None:
    code, output = local_train(tmp_path, argument)
    assert code == 2, output
    assert message in output and output.startswith("train: ") and output.count("\n") == 1
    assert not list((tmp_path / "runs").iterdir())


def test_a_second_run_of_a_busy_name_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    output = tmp_path / "runs" / "busy" / "output"
    output.mkdir(parents=True)
    with FileLock(output / "lock"):
        process = start_local_train(tmp_path, tmp_path / "log", "name=busy")
        said, _ = process.communicate(timeout=240)
    assert process.returncode == 2
    assert f"another process is training in {tmp_path}/runs/busy; wait" in said
    left = [str(path.relative_to(tmp_path)) for path in (tmp_path / "runs").rglob("*")]
    assert sorted(left) == ["runs/busy", "runs/busy/output", "runs/busy/output/lock"]


def test_a_run_of_version_1_is_resumed_with_the_overrides_of_the_command(
    start_folder: Path,
) -> None:
    """Version 1 kept a run's overrides in SageMaker's files, and wrote them at each start."""
    old = ["data.root=gone", "trainer.epochs=7", "optim.lr=0.5"]
    write_input_config(start_folder / "runs" / "old", old)
    code, output = local_train(start_folder, "name=old", *JOB, "trainer.epochs=1")
    assert code == 0, output
    config = (start_folder / "runs" / "old" / "model" / "config.yaml").read_text()
    assert "epochs: 1\n" in config and "lr: 0.03\n" in config


@pytest.mark.parametrize("name", ["with space", "", "-x", "a" * 64, "../up", "under_score"])
def test_an_invalid_run_name_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"name={re.escape(name)}: must be 1 to 63"):
        local.split_name([f"name={name}"])


def test_latest_is_refused_as_a_run_name() -> None:
    with pytest.raises(UserError, match="name=latest: reserved for the link to the newest run"):
        local.split_name(["name=latest"])


@pytest.mark.parametrize(
    "override",
    ["data.root=a b", "model.name=x$y", "data.classes=[a,'b c']", 'note="quoted"', "name_of=ü"],
)
def test_an_override_reaches_the_job_unchanged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, override: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ML_ROOT", run_folder.LINK_LATEST, run_folder.NEW_RUN, run_folder.RUN_NAME):
        monkeypatch.setenv(name, "")  # what the launcher sets goes with the test
    commands: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, command: commands.append(command))
    monkeypatch.setattr(local, "defer_stop", lambda: None)
    local.start(["name=x", override])
    assert commands[0][1:] == ["-m", "entry_point", "train", override]


def test_runs_started_in_the_same_second_get_separate_folders(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = {local.create_run_folder(None)[0] for _ in range(5)}
    assert len(folders) == 5
