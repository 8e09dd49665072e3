"""Stop requests that come early, come twice, or reach only one rank. A job without a step ends at
once: nothing is to be saved."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from entry_point.job.program import ExitCode
from entry_point.job.ranks import ONE_REQUEST_S
from tests.entry_point.job.test_processes import ENDLESS, TWO_RANKS, wait_for_steps
from tests.entry_point.training.forked_ranks import rank_processes
from tests.entry_point.training.training_jobs import start_job, stop_job

Process = subprocess.Popen[str]
FIRST_PROCESS = ("unshare", "--pid", "--fork", "--kill-child")


def start(root: Path, *arguments: str, under: Sequence[str] = ()) -> Process:
    command = [*under, sys.executable, "-m", "entry_point", *arguments]
    environment = {**os.environ, "ML_ROOT": str(root)}
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def wait_for_sigterm_handler(process: int) -> None:
    """Wait until the process handles SIGTERM."""
    bit = 1 << (signal.SIGTERM - 1)
    while True:
        status = Path(f"/proc/{process}/status").read_text().splitlines()
        (caught,) = (line.split()[1] for line in status if line.startswith("SigCgt:"))
        if int(caught, 16) & bit:
            return
        time.sleep(0.001)


def first_child(process: int) -> int:
    children = Path(f"/proc/{process}/task/{process}/children")
    while not (listed := children.read_text().split()):
        time.sleep(0.01)
    return int(listed[0])


def write_two_hosts(root: Path) -> None:
    folder = root / "input" / "config"
    folder.mkdir(parents=True)
    hosts = {"current_host": "localhost", "hosts": ["localhost", "no-such-host.invalid"]}
    (folder / "resourceconfig.json").write_text(json.dumps(hosts))
    overrides = {"data": "folder", "trainer.device": "cpu"}
    (folder / "hyperparameters.json").write_text(json.dumps(overrides))


@pytest.mark.parametrize("under", [(), FIRST_PROCESS])
def test_a_stop_request_while_waiting_for_hosts_ends_the_job_as_stopped(
    under: Sequence[str], tmp_path: Path
) -> None:
    if under and subprocess.run([*under, "true"], capture_output=True).returncode:
        pytest.skip("starting a process as PID 1 needs root")
    write_two_hosts(tmp_path)
    process = start(tmp_path, under=under)  # without a command, as SageMaker's toolkit may
    assert process.stdout is not None
    assert "waiting for the address of host no-such-host.invalid" in process.stdout.readline()
    os.kill(first_child(process.pid) if under else process.pid, signal.SIGTERM)
    assert process.wait(timeout=60) == ExitCode.STOPPED
    assert not (tmp_path / "output" / "failure").exists()


@pytest.mark.parametrize(
    ("command", "code"), [("train", ExitCode.STOPPED), ("optimize", 143), ("predict", 143)]
)
def test_a_stop_request_during_imports_is_handled(command: str, code: int, tmp_path: Path) -> None:
    process = start(tmp_path, command)
    wait_for_sigterm_handler(process.pid)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (code, "")


def test_a_second_stop_request_kills_the_job_and_gives_the_reason(
    tmp_path: Path, photo_folder: Path
) -> None:
    process = start_job(tmp_path, photo_folder, [*ENDLESS, *TWO_RANKS])
    wait_for_steps(tmp_path, process, 2)
    for rank in rank_processes(tmp_path).values():
        os.kill(rank, signal.SIGSTOP)  # so that it cannot stop in time
    process.send_signal(signal.SIGTERM)
    time.sleep(2 * ONE_REQUEST_S)  # the first may be handled late
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == ExitCode.FAILED
    failure = (tmp_path / "output" / "failure").read_text()
    assert "asked to stop" in failure
    assert "memory" not in failure
    assert not rank_processes(tmp_path)


def test_a_signal_that_arrives_twice_within_a_second_is_one_request(
    tmp_path: Path, photo_folder: Path
) -> None:
    """`timeout 60 make local-train` sends it to make, which passes it on, and to the job."""
    process = start_job(tmp_path, photo_folder, [*ENDLESS, *TWO_RANKS])
    wait_for_steps(tmp_path, process, 2)
    ranks = rank_processes(tmp_path).values()
    for rank in ranks:
        os.kill(rank, signal.SIGSTOP)  # so that it cannot stop before the second
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    for rank in ranks:
        os.kill(rank, signal.SIGCONT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == ExitCode.STOPPED, output
    assert list((tmp_path / "checkpoints").glob("step-*.pt"))


def test_a_stop_request_to_one_rank_stops_the_whole_job(tmp_path: Path, photo_folder: Path) -> None:
    process = start_job(tmp_path, photo_folder, [*ENDLESS, *TWO_RANKS])
    wait_for_steps(tmp_path, process, 1)
    os.kill(rank_processes(tmp_path)[1], signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == ExitCode.STOPPED, output


def test_a_stop_request_to_every_process_stops_with_a_checkpoint(
    tmp_path: Path, photo_folder: Path
) -> None:
    """systemd, Slurm and `pkill` send it to the processes that load data, too."""
    process = start_job(
        tmp_path, photo_folder, [*ENDLESS, "pipeline=workers", "pipeline.num_workers=2"]
    )
    wait_for_steps(tmp_path, process, 1)
    rank = rank_processes(tmp_path)[0]
    workers = Path(f"/proc/{rank}/task/{rank}/children").read_text().split()
    assert workers
    for each in (*map(int, workers), rank):
        os.kill(each, signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == ExitCode.STOPPED, output
    assert list((tmp_path / "checkpoints").glob("step-*.pt"))


NEVER_BUILT = "model.name=tests.entry_point.job.endless_start.endless_net"
STOPPED = "train: stopped before the first step, with nothing to save\n"


@pytest.mark.parametrize(
    ("ranks", "number"),
    [((), signal.SIGINT), ((), signal.SIGHUP), (TWO_RANKS, signal.SIGTERM)],
)
def test_ranks_that_do_not_train_yet_are_not_waited_for(
    ranks: tuple[str, ...], number: signal.Signals, tmp_path: Path, photo_folder: Path
) -> None:
    process = start_job(tmp_path, photo_folder, [*ENDLESS, *ranks, NEVER_BUILT])
    while len(list(tmp_path.glob("building-*"))) < (2 if ranks else 1):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    assert stop_job(process, number).endswith(STOPPED)
    assert not (tmp_path / "output" / "failure").exists()
    while rank_processes(tmp_path):  # the test's time limit ends this loop
        time.sleep(0.05)


@pytest.mark.parametrize("delay", [0.05, 0.2, 0.8])
def test_a_stop_in_the_first_second_ends_without_a_traceback(
    delay: float, tmp_path: Path, photo_folder: Path
) -> None:
    process = start_job(tmp_path, photo_folder, [*ENDLESS, NEVER_BUILT])
    wait_for_sigterm_handler(process.pid)
    time.sleep(delay)
    output = stop_job(process)
    assert "Traceback" not in output and (not output or output.endswith(STOPPED))
    assert not (tmp_path / "output" / "failure").exists()
