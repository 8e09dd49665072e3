"""Two starts of one name: the second is refused and changes nothing. Early requests to stop."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from entry_point.job.program import ExitCode
from tests.entry_point.job.test_processes import wait_for_steps
from tests.entry_point.job.test_signals import wait_for_sigterm_handler
from tests.launch.test_local import JOB, ROOT, start_folder, start_local_train

assert start_folder  # a fixture
ENDLESS = (*JOB, "trainer.epochs=100000", "trainer.log_every_steps=1")


def start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Start the program in a new interpreter, which it replaces by another for the job."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "launch.local", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_second_start_is_refused_and_leaves_the_first_one_training(
    start_folder: Path, tmp_path: Path
) -> None:
    run = start_folder / "runs" / "twice"
    first = start_local_train(start_folder, tmp_path / "first", "name=twice", *ENDLESS)
    wait_for_steps(run, first, 1)
    changed = ("name=twice", *ENDLESS, "optim.lr=0.5")
    second = start_local_train(start_folder, tmp_path / "second", *changed)
    output, _ = second.communicate(timeout=120)
    assert second.returncode == ExitCode.USAGE, output
    assert output.startswith("train: another process is training in")
    assert output.count("\n") == 1
    assert first.poll() is None
    first.send_signal(signal.SIGTERM)
    output, _ = first.communicate(timeout=120)
    assert first.returncode == ExitCode.STOPPED, output


def test_of_starts_at_the_same_moment_one_trains_with_its_own_settings(
    start_folder: Path, tmp_path: Path
) -> None:
    own = {rate: [*JOB, "trainer.epochs=1", f"optim.lr={rate}"] for rate in (0.1, 0.2, 0.3)}
    starts = {
        rate: start_local_train(start_folder, tmp_path / f"{rate}", "name=race", *settings)
        for rate, settings in own.items()
    }
    outputs = {rate: process.communicate(timeout=240)[0] for rate, process in starts.items()}
    codes = {rate: process.returncode for rate, process in starts.items()}
    # A start that is slow to load may find that the first has finished, and resume it.
    trained = [rate for rate, code in codes.items() if code == 0]
    assert trained, outputs
    for rate, code in codes.items():
        refused = "another process is training in" in outputs[rate]
        changed = "optim.lr" in outputs[rate]  # refused by the finished one's checkpoint
        assert code == 0 or (code == ExitCode.USAGE and (refused or changed)), outputs[rate]
    run = start_folder / "runs" / "race"
    (rate,) = trained
    assert f"lr: {rate}" in (run / "model" / "config.yaml").read_text()


def test_a_stopped_run_leaves_a_model_and_only_a_finished_one_becomes_the_latest(
    start_folder: Path, tmp_path: Path
) -> None:
    run, latest = start_folder / "runs" / "by-hand", start_folder / "runs" / "latest"
    before = latest.resolve()
    metrics = run / "checkpoints" / "metrics.jsonl"
    for number in (signal.SIGINT, signal.SIGTERM):
        steps = metrics.read_text().count('"loss"') if metrics.exists() else 0
        log = tmp_path / f"{number}"
        process = start_local_train(start_folder, log, f"name={run.name}", *ENDLESS)
        wait_for_steps(run, process, steps + 4)  # more than an epoch
        process.send_signal(number)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == ExitCode.STOPPED, output
        assert (run / "model" / "model.safetensors").is_file()
        assert latest.resolve() == before


@pytest.mark.parametrize(
    ("delay", "number"),
    [
        *((delay, signal.SIGTERM) for delay in (0.05, 0.3, 0.6, 0.9, 1.2)),
        (0.6, signal.SIGINT),
        (0.6, signal.SIGHUP),
    ],
)
def test_a_stop_at_any_moment_of_the_start_leaves_no_traceback_and_is_not_the_latest(
    delay: float, number: signal.Signals, start_folder: Path
) -> None:
    name = f"stopped-{number}-{round(delay * 100)}"
    process = start(start_folder, f"name={name}", *ENDLESS)
    wait_for_sigterm_handler(process.pid)
    time.sleep(delay)
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == ExitCode.STOPPED, output
    assert "Traceback" not in output and "KeyboardInterrupt" not in output
    run = start_folder / "runs" / name
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
