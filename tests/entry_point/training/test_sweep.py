"""Sweeps: several runs from one command."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from entry_point import sweep
from entry_point.config.config_errors import ConfigError
from entry_point.job.program import ExitCode
from tests.entry_point.training.training_jobs import TINY, read_records


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Restores the signal handlers, which a sweep in this process replaces."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_values_are_combined_as_hydra_does() -> None:
    runs = sweep.combinations(["optim.lr=0.1,0.2", "trainer.seed=range(0,2)", "trainer.epochs=3"])
    assert [run[:2] for run in runs] == [
        ["optim.lr=0.1", "trainer.seed=0"],
        ["optim.lr=0.1", "trainer.seed=1"],
        ["optim.lr=0.2", "trainer.seed=0"],
        ["optim.lr=0.2", "trainer.seed=1"],
    ]
    assert all(run[2] == "trainer.epochs=3" for run in runs)


@pytest.mark.parametrize("override", ["optim.lr=0.1,-1", "optim.lrr=1,2", "optim.lr=["])
def test_a_wrong_override_is_found_before_the_first_run_starts(override: str) -> None:
    with pytest.raises(ConfigError, match=r"optim\.lr"):
        sweep.combinations([override])


def test_each_run_has_its_own_folder_and_table_row(
    tmp_path: Path,
    photo_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sweep, "RUNS", tmp_path)
    arguments = [*TINY, f"data.root={photo_folder}", "trainer.epochs=1"]
    assert sweep.main([*arguments, "name=rates", "optim.lr=0.01,0.1"]) == 0
    header, *table = capfd.readouterr().out.splitlines()[-3:]
    assert header.split()[-1] == "optim.lr"
    best = []
    for number, row in enumerate(table):
        assert row.endswith(("  0.01", "  0.1")[number])
        folder = tmp_path / "rates" / str(number)
        best.append(max(r["val_accuracy"] for r in read_records(folder) if "val_loss" in r))
        assert f"{100 * best[-1]:.2f} % accuracy" in row
    assert ["* " in row for row in table] == [value == max(best) for value in best]
    assert all((tmp_path / "rates" / n / "model" / "model.safetensors").is_file() for n in "01")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_sweep_waits_for_the_checkpoint_of_its_run(
    number: signal.Signals, tmp_path: Path, photo_folder: Path
) -> None:
    arguments = [*TINY, f"data.root={photo_folder}", "name=a", "trainer.epochs=100000,100001"]
    command = [sys.executable, "-m", "entry_point.sweep", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True)
    first = tmp_path / "runs" / "a" / "0"
    metrics = first / "output" / "data" / "metrics.jsonl"
    while not (metrics.exists() and '"loss"' in metrics.read_text()):
        assert process.poll() is None
        time.sleep(0.05)
    if number != signal.SIGTERM:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    assert process.wait(timeout=120) == ExitCode.STOPPED
    assert list((first / "checkpoints").glob("step-*.pt"))
    assert not (first.parent / "1").exists()


def test_a_killed_run_fails_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "RUNS", tmp_path)
    codes = iter([-9, 0])
    monkeypatch.setattr(sweep.RunQueue, "train", lambda *_: next(codes))
    assert sweep.main(["name=a", "optim.lr=0.1,0.2"]) == ExitCode.FAILED


def test_a_run_that_could_not_start_is_started_by_the_corrected_command(
    tmp_path: Path, photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "RUNS", tmp_path)
    once = [*TINY, "trainer.epochs=1", "name=a"]
    assert sweep.main([*once, "data.root=nowhere"]) == ExitCode.FAILED
    assert sweep.main([*once, f"data.root={photo_folder}"]) == ExitCode.FINISHED
    assert sweep.main([*once, "data.root=nowhere"]) == ExitCode.FAILED
    assert (tmp_path / "a" / "0" / "model" / "model.safetensors").is_file()


def test_a_sweep_with_other_values_under_the_same_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep.RunQueue, "train", lambda _self, folder, _run: make(folder))
    for values in ("0.1,0.2", "0.1,0.2,0.3"):  # with a new run beside those that are there
        assert sweep.main(["name=rates", f"optim.lr={values}"]) == 0
    assert sweep.main(["name=rates", "optim.lr=0.2,0.1"]) == ExitCode.USAGE
    assert "name=rates: its run 0 has optim.lr=0.1; repeat that" in capsys.readouterr().err


def make(folder: Path) -> int:
    folder.mkdir(exist_ok=True)
    return 0


def test_a_sweep_without_a_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep.main(["optim.lr=0.1,0.2"]) == ExitCode.USAGE
    assert "name=" in capsys.readouterr().err
