"""The job as the platform starts it: exit codes, signals, killed processes, ranks."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file

from entry_point.job.program import ExitCode
from tests.entry_point.training import forked
from tests.entry_point.training.forked_ranks import rank_processes
from tests.entry_point.training.training_jobs import (
    TINY,
    read_records,
    run_job,
    start_job,
    stop_job,
    timeless,
    write_job,
)
from tests.forkserver import Program
from tests.platform_files import write_input_config

Process = subprocess.Popen[str] | Program
ENDLESS = ("trainer.epochs=100000", "trainer.log_every_steps=1")
TWO_RANKS = ("trainer.nproc_per_host=2",)


def wait_for_steps(root: Path, process: Process, steps: int) -> None:
    metrics = root / "checkpoints" / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text().count('"loss"') >= steps):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)


def test_a_wrong_configuration_ends_with_one_line_and_its_exit_code(
    tmp_path: Path, photo_folder: Path
) -> None:
    output = run_job(tmp_path, photo_folder, ["trainer.epochs=0"], code=ExitCode.USAGE)
    assert output == "train: trainer.epochs=0: Input should be greater than or equal to 1\n"
    assert "trainer.epochs=0" in (tmp_path / "output" / "failure").read_text()


def test_a_job_writes_nothing_to_a_run_folder_in_use(tmp_path: Path, photo_folder: Path) -> None:
    failure = tmp_path / "output" / "failure"
    failure.parent.mkdir()
    failure.write_text("of the running job")
    with FileLock(tmp_path / "output" / "lock"):
        output = run_job(tmp_path, photo_folder, code=ExitCode.USAGE)
    assert output.startswith(f"train: another process is training in {tmp_path}; wait for it")
    assert output.count("\n") == 1
    assert failure.read_text() == "of the running job"


def test_missing_data_ends_with_one_line_that_names_it(tmp_path: Path) -> None:
    missing = ["data.root=/no/such/folder", *TWO_RANKS]
    output = run_job(tmp_path, tmp_path, missing, code=ExitCode.USAGE)
    assert output.count("train: ") == 1
    assert "/no/such/folder" in output
    assert "Traceback" not in output
    assert "/no/such/folder" in (tmp_path / "output" / "failure").read_text()


def test_checkpoints_by_time_are_written_once_each(tmp_path: Path, photo_folder: Path) -> None:
    overrides = [
        *TWO_RANKS,
        "trainer.batch_size=2",
        "trainer.epochs=1",
        "model.name=tests.own_models.hurried_net",
    ]
    run_job(tmp_path, photo_folder, overrides)
    saved = [int(p.stem[5:]) for p in sorted((tmp_path / "checkpoints").glob("step-*.pt"))]
    assert saved == list(range(2, 25, 2))


def test_sigterm_writes_a_checkpoint_from_which_the_job_resumes(
    tmp_path: Path, photo_folder: Path
) -> None:
    process = start_job(tmp_path, photo_folder, ENDLESS)
    wait_for_steps(tmp_path, process, 5)
    assert "stopped on request" in stop_job(process)
    assert not (tmp_path / "output" / "failure").exists()
    done = read_records(tmp_path)[-1]["epoch"]
    epochs = done + 2
    output = run_job(tmp_path, photo_folder, [*ENDLESS, f"trainer.epochs={epochs}"])
    assert "resuming from" in output
    steps = [record["step"] for record in read_records(tmp_path) if "loss" in record]
    assert steps == list(range(1, 3 * epochs + 1))


def test_two_ranks_train_like_one(tmp_path: Path, photo_folder: Path) -> None:
    assert forked.run(tmp_path / "one", photo_folder, ()) == ExitCode.FINISHED
    output = run_job(tmp_path / "two", photo_folder, TWO_RANKS)
    assert "FutureWarning" not in output
    one = timeless(read_records(tmp_path / "one"))
    two = timeless(read_records(tmp_path / "two"))
    assert [r.keys() for r in one] == [r.keys() for r in two]
    for expected, got in zip(one, two, strict=True):
        assert got == pytest.approx(expected, abs=1e-5)
    models = [load_file(tmp_path / n / "model/model.safetensors") for n in ("one", "two")]
    for key, value in models[0].items():
        torch.testing.assert_close(models[1][key], value, rtol=1e-4, atol=1e-6)


def test_sagemakers_toolkit_can_run_it_as_a_script(tmp_path: Path, photo_folder: Path) -> None:
    _, environment = write_job(tmp_path, photo_folder)
    write_input_config(tmp_path, [*TINY, "trainer.epochs=1"])
    command = [sys.executable, "entry_point/__main__.py", "--optim.lr", "0.1"]
    environment["PYTHONPATH"] = "."
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert (tmp_path / "model" / "model.safetensors").is_file()
    assert "epochs: 1\n" in (tmp_path / "model" / "config.yaml").read_text()


def test_an_error_in_one_rank_ends_the_job_with_its_traceback_and_keeps_its_metrics(
    tmp_path: Path, photo_folder: Path
) -> None:
    model = "model.name=tests.own_models.failing_net"
    run_job(tmp_path, photo_folder, [*ENDLESS, *TWO_RANKS, model], code=ExitCode.FAILED)
    assert read_records(tmp_path)[-1]["step"] == 2
    failure = (tmp_path / "output" / "failure").read_text()
    assert failure.startswith("ArithmeticError: the second rank cannot go on")
    assert "in third_step" in failure
    assert not rank_processes(tmp_path)


def test_the_death_of_one_rank_ends_the_job_with_its_number_and_signal(
    tmp_path: Path, photo_folder: Path
) -> None:
    process = start_job(tmp_path, photo_folder, [*ENDLESS, *TWO_RANKS])
    wait_for_steps(tmp_path, process, 7)  # the first epoch's checkpoint is there
    os.kill(rank_processes(tmp_path)[1], signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == ExitCode.FAILED, output
    reason = (
        "rank 1 of this host was killed by SIGKILL; the host may have run out of memory: lower "
        "trainer.batch_size or pipeline.num_workers, as workers hold batches, too; the same "
        "command resumes from the last checkpoint"
    )
    assert (tmp_path / "output" / "failure").read_text() == reason
    assert f"train: {reason}\n" in output
    assert not rank_processes(tmp_path)


def test_a_rank_that_ends_without_a_word_is_named_with_its_exit_code(
    tmp_path: Path, photo_folder: Path
) -> None:
    silent = ["model.name=tests.own_models.silent_net", *TWO_RANKS]
    output = run_job(tmp_path, photo_folder, silent, code=ExitCode.FAILED)
    reason = "rank 1 of this host ended with exit code 3 and gave no reason"
    assert output.endswith(f"train: {reason}\n")
    assert (tmp_path / "output" / "failure").read_text() == reason


def test_a_stop_that_reaches_the_ranks_too_before_their_first_step_is_a_stop(
    tmp_path: Path, photo_folder: Path
) -> None:
    """As `scancel` sends it: to every process of the job."""
    never = "model.name=tests.entry_point.job.endless_start.endless_net"
    process = start_job(tmp_path, photo_folder, [*ENDLESS, *TWO_RANKS, never])
    while len(list(tmp_path.glob("building-*"))) < 2:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    for rank in rank_processes(tmp_path).values():
        os.kill(rank, signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == ExitCode.STOPPED, output
    assert not (tmp_path / "output" / "failure").exists()


def test_a_killed_single_rank_is_reported_and_its_metrics_are_left(
    tmp_path: Path, photo_folder: Path
) -> None:
    process = start_job(tmp_path, photo_folder, ENDLESS)
    wait_for_steps(tmp_path, process, 1)
    os.kill(rank_processes(tmp_path)[0], signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == ExitCode.FAILED
    assert "killed by SIGKILL" in (tmp_path / "output" / "failure").read_text()
    history = tmp_path / "checkpoints" / "metrics.jsonl"
    assert (tmp_path / "output" / "data" / "metrics.jsonl").read_text() == history.read_text()


def files(root: Path) -> set[str]:
    inputs = root / "input"
    found = (path for path in root.rglob("*") if inputs not in path.parents and path.is_file())
    return {str(path.relative_to(root)) for path in found}


def test_a_failed_start_leaves_its_reason_but_no_checkpoint_and_no_model(
    tmp_path: Path, photo_folder: Path
) -> None:
    useless = ["model.name=tests.own_models.useless_net", *TWO_RANKS]
    run_job(tmp_path, photo_folder, useless, code=ExitCode.FAILED)
    assert not [name for name in files(tmp_path) if not name.startswith("output/")]
    failure = (tmp_path / "output/failure").read_text()
    assert failure.startswith("ArithmeticError: cannot take a step")


def test_a_failed_start_keeps_what_an_earlier_one_has_left(
    tmp_path: Path, photo_folder: Path
) -> None:
    run_job(tmp_path, photo_folder, ["trainer.epochs=1"])
    before = files(tmp_path)
    run_job(tmp_path, photo_folder, ["trainer.epochs=1", "optim.lr=0.5"], code=ExitCode.USAGE)
    assert files(tmp_path) == before | {"output/failure"}
    assert read_records(tmp_path)[-1]["step"] == 3
