"""Sweeps: several runs from one command."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from entry_point import sweep
from entry_point.config.config_errors import ConfigError
from entry_point.job.program import ExitCode
from tests import commands, forkserver
from tests.entry_point.job.test_processes import wait_for_steps
from tests.entry_point.training import forked_ranks
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


@pytest.mark.parametrize(
    "override", ["optim.lr=0.1,-1", "optim.lrr=1,2", "optim.lr=[", "optim.lr=interval(0,1)"]
)
def test_a_wrong_override_is_found_before_the_first_run_starts(override: str) -> None:
    with pytest.raises(ConfigError, match=r"optim\.lr"):
        sweep.combinations([override])


POPEN = subprocess.Popen


class ForkedRun:
    """What a sweep uses of `subprocess.Popen`: the run is forked from it, into its group."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._pid = os.fork()
        if not self._pid:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            subprocess.Popen = POPEN  # type: ignore[misc]
            forkserver.take(env)
            forked_ranks.prepare()
            forkserver.run(command[1:])

    def terminate(self) -> None:
        os.kill(self._pid, signal.SIGTERM)

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def fork_runs(folder: Path) -> None:
    """Have the sweep that runs in this process fork its runs, below `folder`."""
    os.chdir(folder)
    subprocess.Popen = ForkedRun  # type: ignore[assignment,misc]


def start_sweep(folder: Path, *arguments: str) -> forkserver.Program:
    """Start a sweep of tiny jobs in `folder`."""
    (log := folder / "log").unlink(missing_ok=True)
    command = ["-m", "entry_point", "sweep", *TINY, *arguments]
    return forkserver.start(command, log, prepare=partial(fork_runs, folder))


def run_sweep(folder: Path, *arguments: str) -> tuple[int, str]:
    """The exit code and the output of such a sweep."""
    process = start_sweep(folder, *arguments)
    output, _ = process.communicate(timeout=240)
    return process.wait(), output


def test_a_stopped_sweep_waits_for_the_checkpoint_of_its_run(
    tmp_path: Path, photo_folder: Path
) -> None:
    arguments = [f"data.root={photo_folder}", "name=a", "trainer.epochs=100000,100001"]
    process = start_sweep(tmp_path, *arguments)
    first = tmp_path / "runs" / "a" / "0"
    wait_for_steps(first, process, 1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.wait(timeout=120) == ExitCode.STOPPED
    assert list((first / "checkpoints").glob("step-*.pt"))
    assert not (first.parent / "1").exists()


def test_a_killed_run_fails_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "RUNS", tmp_path)
    codes = iter([-9, 0])
    monkeypatch.setattr(sweep.RunQueue, "train", lambda *_: next(codes))
    assert commands.sweep(["name=a", "optim.lr=0.1,0.2"]) == ExitCode.FAILED


def test_a_run_that_could_not_start_is_started_by_the_corrected_command(
    tmp_path: Path, photo_folder: Path
) -> None:
    once = ("trainer.epochs=1", "name=a")
    for root, expected, has_run in (
        ("nowhere", ExitCode.FAILED, False),
        (photo_folder, ExitCode.FINISHED, True),
        ("nowhere", ExitCode.FAILED, True),
    ):
        code, output = run_sweep(tmp_path, *once, f"data.root={root}")
        assert code == expected, output
        assert (tmp_path / "runs" / "a").exists() == has_run
    assert (tmp_path / "runs" / "a" / "0" / "model" / "model.safetensors").is_file()


def test_each_run_has_a_row_is_skipped_once_finished_and_refused_with_other_values(
    tmp_path: Path, photo_folder: Path
) -> None:
    unclipped = [f"data.root={photo_folder}", "name=rates", "trainer.epochs=1"]
    arguments = ["optim.clip_norm=1", *unclipped]
    code, output = run_sweep(tmp_path, *arguments, "optim.lr=0.1,0.2")
    assert code == ExitCode.FINISHED, output
    header, *table = output.splitlines()[-4:-1]
    assert header.split()[-1] == "optim.lr"
    best = []
    for number, row in enumerate(table):
        assert row.endswith(("  0.1", "  0.2")[number])
        records = read_records(tmp_path / "runs" / "rates" / str(number))
        best.append(max(r["val_accuracy"] for r in records if "val_loss" in r))
        assert f"{100 * best[-1]:.2f} % accuracy" in row
    assert ["* " in row for row in table] == [value == max(best) for value in best]
    weights = tmp_path / "runs/rates/0/model/model.safetensors"
    written = weights.stat().st_mtime_ns
    code, output = run_sweep(tmp_path, *arguments, "optim.lr=0.1,0.2")
    assert code == ExitCode.FINISHED and weights.stat().st_mtime_ns == written
    assert output.count(": has finished before\n") == 2 and "at epoch" in output
    code, output = run_sweep(tmp_path, *arguments, "optim.lr=0.3,0.2")
    assert code == ExitCode.FAILED and weights.stat().st_mtime_ns == written
    assert "optim.lr=0.3: the checkpoint was made with optim.lr=0.1" in output
    assert output.count(": has finished before\n") == 1
    code, output = run_sweep(tmp_path, *unclipped, "optim.lr=0.1,0.2", "optim.clip_norm=null")
    assert code == ExitCode.FAILED and ": has finished before" not in output
    assert output.count("optim.clip_norm=null: the checkpoint was made with optim.clip_norm=1") == 2
    longer = [*arguments[:-1], "trainer.epochs=2"]
    assert run_sweep(tmp_path, *longer, "optim.lr=0.1,0.2")[0] == ExitCode.FINISHED
    assert weights.stat().st_mtime_ns > written


def test_finished_runs_keep_the_values_that_trained_them(
    tmp_path: Path, photo_folder: Path
) -> None:
    """`data.balance` may change between two epochs: with none left, it decides nothing."""
    arguments = [f"data.root={photo_folder}", "name=rare", "trainer.epochs=1"]
    code, output = run_sweep(tmp_path, *arguments, "data.balance=null,classes")
    assert code == ExitCode.FINISHED, output
    code, output = run_sweep(tmp_path, *arguments, "data.balance=classes,null")
    assert code == ExitCode.FAILED
    for number, (value, made) in enumerate((("classes", "null"), ("null", "classes"))):
        assert f"balance={value}: the checkpoint was made with data.balance={made}" in output
        config = tmp_path / "runs" / "rare" / str(number) / "model" / "config.yaml"
        assert f"  balance: {made}\n" in config.read_text()
    longer = [*arguments[:-1], "trainer.epochs=2", "data.balance=classes,null"]
    assert run_sweep(tmp_path, *longer)[0] == ExitCode.FINISHED


def test_a_sweep_without_a_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.sweep(["optim.lr=0.1,0.2"]) == ExitCode.USAGE
    assert "name=" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["latest", "../data", "a b", "a/b"])
def test_a_sweep_is_named_as_a_run_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder of another name could be outside of runs/, or in the newest run."""
    assert commands.sweep([f"name={name}", "optim.lr=0.1,0.2"]) != ExitCode.FINISHED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"sweep: name={name}: ")
