"""Local runs: one folder per run, a link to the newest, an earlier run by its name."""

import json
import os
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from PIL import Image

from entry_point.job import hyperparameters, run_folder
from entry_point.job.program import UserError
from launch import local
from tests import forkserver
from tests.entry_point.training import forked, forked_ranks
from tests.forkserver import Program

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


def start_local_train(
    start_folder: Path, log: Path, *arguments: str, patient: bool = True
) -> Program:
    """Start the program, which becomes the job without an exec.

    Unless it is `patient`, it does not wait for a run folder in use.
    """
    prepare = partial(_without_exec, start_folder, patient)
    return forkserver.start(["-m", "launch.local", *arguments], log, prepare=prepare)


def _without_exec(start_folder: Path, patient: bool) -> None:
    os.chdir(start_folder)
    forked_ranks.prepare()
    if not patient:
        forked.lose_patience()
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


@pytest.mark.parametrize("kept", ["checkpoints/step-000000001.pt", "output/data/metrics.jsonl"])
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


def refused(monkeypatch: pytest.MonkeyPatch, start_folder: Path, *arguments: str) -> None:
    """Check that local-train refuses the arguments and starts no job."""
    monkeypatch.chdir(start_folder)
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("the job was started"))
    with pytest.raises(SystemExit, match="2"):
        local.main(arguments)


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
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    argument: str,
    message: str,
) -> None:
    refused(monkeypatch, tmp_path, argument)
    line = capsys.readouterr().err
    assert message in line
    assert line.startswith("local-train: ") and line.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_second_run_of_a_busy_name_is_refused_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(run_folder, "LOCK_PATIENCE_S", 0.0)
    output = tmp_path / "runs" / "busy" / "output"
    output.mkdir(parents=True)
    with FileLock(output / "lock"):
        refused(monkeypatch, tmp_path, "name=busy", "trainer.epochs=1")
    assert f"another process is training in {tmp_path}/runs/busy; wait" in capsys.readouterr().err
    left = [str(path.relative_to(tmp_path)) for path in (tmp_path / "runs").rglob("*")]
    assert sorted(left) == ["runs/busy", "runs/busy/output", "runs/busy/output/lock"]


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
def test_an_override_reaches_the_job_unchanged(tmp_path: Path, override: str) -> None:
    local.write_input_config(tmp_path, [override], hosts=["algo-1"], current="algo-1")
    text = (tmp_path / "input" / "config" / "hyperparameters.json").read_text()
    assert hyperparameters.decode(json.loads(text)) == [override]


def test_runs_started_in_the_same_second_get_separate_folders(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = {local.create_run_folder(None) for _ in range(5)}
    assert len(folders) == 5
