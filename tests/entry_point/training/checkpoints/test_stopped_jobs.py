"""`model/` is written with each evaluation that is exported; a stopped job leaves the last one."""

import re
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from entry_point import model_folder
from entry_point.job.program import ExitCode
from entry_point.job.run_folder import RunFolder
from tests import commands
from tests.entry_point.job.test_processes import ENDLESS, TWO_RANKS, wait_for_steps
from tests.entry_point.training import forked
from tests.entry_point.training.checkpoints.test_best_weights import OVERRIDES as WORSENS
from tests.entry_point.training.checkpoints.test_interrupted_runs import changed
from tests.entry_point.training.training_jobs import run_job, start_job, stop_job
from tests.forkserver import Program

STEPS = 3
"""Of an epoch."""
WHOLE = ["classes.json", "config.yaml", "model.safetensors"]


def start(root: Path, data: Path, overrides: Sequence[str] = ()) -> Program:
    """Start or resume a job, and wait until it has trained for more than an epoch."""
    metrics = root / "checkpoints/metrics.jsonl"
    before = metrics.read_text().count('"loss"') if metrics.exists() else 0
    process = start_job(root, data, [*ENDLESS, *overrides])
    wait_for_steps(root, process, before + STEPS + 1)
    return process


def files(root: Path) -> list[str]:
    """The names in the model folder, of hidden files too, without those of own code."""
    return sorted(each.name for each in (root / "model").iterdir() if each.name != "code")


def epoch(root: Path) -> int:
    """The one that the model has, by what its weights say."""
    with safe_open(root / "model/model.safetensors", "pt") as opened:
        word, number, *_ = opened.metadata()["reached"].split()
    assert word == "epoch"
    return int(number)


def checkpoint(root: Path, name: str = "") -> dict[str, Any]:
    path = root / "checkpoints" / name if name else newest(root)
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def newest(root: Path) -> Path:
    return sorted((root / "checkpoints").glob("step-*.pt"))[-1]


def assert_exported(root: Path, state: dict[str, Any]) -> None:
    """The model has these weights of a checkpoint, and says from which epoch they are."""
    found, saved = load_file(root / "model/model.safetensors"), state["learner"]["model"]
    assert found.keys() == saved.keys()
    assert all(torch.equal(found[name], value) for name, value in saved.items())
    assert epoch(root) == state["progress"]["epoch"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_job_leaves_the_model_of_its_last_evaluated_epoch(
    number: signal.Signals, tmp_path: Path, photo_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = TWO_RANKS if number == signal.SIGTERM else ()
    small = ["model.name=project.models.small_net", "model.kwargs.width=8"]
    stop_job(start(tmp_path, photo_folder, [*small, *ranks]), number)
    assert files(tmp_path) == WHOLE
    reached = checkpoint(tmp_path)["progress"]["epoch"]
    assert epoch(tmp_path) == reached > 0
    where = [f"model_dir={tmp_path / 'model'}", f"input={photo_folder / 'val'}"]
    assert commands.predict([*where, f"output_dir={tmp_path / 'out'}", "pipeline=pillow"]) == 0
    line = capsys.readouterr().err.splitlines()[0]
    assert f"{tmp_path}/model: epoch {reached} of 100000, validation accuracy " in line


def test_the_model_follows_each_evaluation_of_a_run_that_resumes(
    tmp_path: Path, photo_folder: Path
) -> None:
    stop_job(start(tmp_path, photo_folder))
    before = epoch(tmp_path)
    stop_job(start(tmp_path, photo_folder))
    between = epoch(tmp_path)
    assert between > before
    run_job(tmp_path, photo_folder, [*ENDLESS, f"trainer.epochs={between + 1}"])
    assert_exported(tmp_path, checkpoint(tmp_path))
    assert epoch(tmp_path) == between + 1


def test_a_job_that_is_stopped_in_its_first_epoch_leaves_none(
    tmp_path: Path, photo_folder: Path
) -> None:
    overrides = [*ENDLESS, "trainer.evaluate_every_epochs=1000"]
    code = forked.run_until_step(tmp_path, photo_folder, overrides, 5, signal.SIGTERM)
    assert code == ExitCode.STOPPED, (tmp_path / "log").read_text()
    assert files(tmp_path) == []


def test_with_export_best_it_is_the_best_one_already(tmp_path: Path, photo_folder: Path) -> None:
    overrides = [*WORSENS, *ENDLESS, "trainer.report=false", "trainer.export=best"]
    # In the third epoch or later.
    code = forked.run_until_step(tmp_path, photo_folder, overrides, 7, signal.SIGTERM)
    assert code == ExitCode.STOPPED, (tmp_path / "log").read_text()
    assert_exported(tmp_path, checkpoint(tmp_path, "best.pt"))
    assert epoch(tmp_path) < checkpoint(tmp_path)["progress"]["epoch"]


@pytest.mark.parametrize("export", ["best", "last"])
def test_a_machine_that_has_the_checkpoints_alone_gets_the_model_again(
    export: str, tmp_path: Path, photo_folder: Path
) -> None:
    """As after a Spot interruption: the platform restores nothing else."""
    same = ["trainer.evaluate_every_epochs=2", f"trainer.export={export}"]
    run_job(tmp_path, photo_folder, [*same, "trainer.epochs=2"])
    for name in ("model", "output"):
        shutil.rmtree(tmp_path / name)
    more = [*same, "trainer.epochs=9"]
    code = forked.run_until_step(tmp_path, photo_folder, more, 7, signal.SIGTERM)
    assert code == ExitCode.STOPPED, (tmp_path / "log").read_text()
    assert files(tmp_path) == WHOLE and epoch(tmp_path) == 2


def _write_half_of_the_model() -> None:
    """Then the disk hangs."""

    def write(_weights: object, file: Path, _metadata: object) -> None:
        file.write_bytes(b"half")
        (RunFolder.from_environment().root / "stuck").touch()
        threading.Event().wait()

    pytest.MonkeyPatch().setattr(model_folder, "save_file", write)


def test_a_kill_while_the_model_is_written_leaves_the_earlier_one(
    tmp_path: Path, photo_folder: Path
) -> None:
    run_job(tmp_path, photo_folder, ["trainer.epochs=1"])
    before = {name: (tmp_path / "model" / name).read_bytes() for name in WHOLE}
    mark, two = tmp_path / "stuck", ["trainer.epochs=2"]
    process = forked.start(tmp_path, photo_folder, two, prepare=_write_half_of_the_model)
    while not mark.exists():
        assert process.is_alive(), (tmp_path / "log").read_text()
        time.sleep(0.02)
    process.kill()
    process.join()
    visible = [name for name in files(tmp_path) if not name.startswith(".")]
    assert visible == [*before]
    assert all((tmp_path / "model" / name).read_bytes() == before[name] for name in before)
    run_job(tmp_path, photo_folder, two)
    assert files(tmp_path) == WHOLE
    assert_exported(tmp_path, checkpoint(tmp_path))


def test_a_complete_run_says_what_it_reaches_on_other_validation_images(
    tmp_path: Path, photo_folder: Path
) -> None:
    root, given = tmp_path / "run", ["trainer.epochs=1", "task.best=loss"]
    for data in (photo_folder, changed(photo_folder, "val", tmp_path)):
        assert forked.run(root, data, given) == 0
    before, now = re.findall(r"validation loss +(\S+) \(best", (root / "log").read_text())
    with safe_open(root / "model/model.safetensors", "pt") as opened:
        assert opened.metadata()["reached"] == f"epoch 1 of 1, validation loss {now}"
    assert now != before
