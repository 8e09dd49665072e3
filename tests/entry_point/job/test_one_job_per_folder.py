"""A run folder belongs to one job: who holds its lock, and who may write into it."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from entry_point.job.program import ExitCode
from entry_point.job.ranks import OPTION
from entry_point.job.run_folder import RunBusyError, RunFolder
from tests.entry_point.job.test_processes import ENDLESS, TWO_RANKS
from tests.entry_point.training.forked_ranks import rank_processes
from tests.entry_point.training.training_jobs import write_job

HOLD = """
import sys
from pathlib import Path
from entry_point.job.run_folder import RunFolder
run = RunFolder(Path(sys.argv[1]))
lock = run.hold()
print("held", flush=True)
sys.stdin.read()
"""


def hold_elsewhere(run: RunFolder) -> "subprocess.Popen[str]":
    """A process that holds the job's lock until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_lock_is_waited_for_while_its_killed_holder_dies(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    holder = hold_elsewhere(run)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(run.hold)
        time.sleep(0.2)  # it has tried in vain
        holder.kill()
        waiting.result().close()
    holder.communicate()


def test_a_lock_is_refused_while_its_holder_lives_and_reached_by_inheritance(
    tmp_path: Path,
) -> None:
    run = RunFolder(tmp_path)
    with run.hold() as lock:
        heir = subprocess.Popen(["sleep", "600"], stdin=lock)
    with pytest.raises(RunBusyError, match="another process is training in"):
        run.hold()
    heir.kill()
    heir.wait()
    run.hold().close()


def test_no_rank_outlives_a_job_killed_while_the_ranks_start(
    tmp_path: Path, photo_folder: Path
) -> None:
    command, environment = write_job(tmp_path, photo_folder, [*ENDLESS, *TWO_RANKS])
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    while len(rank_processes(tmp_path)) < 2:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.005)
    process.kill()
    process.wait()
    patience = time.monotonic() + 120  # an orphan waits 20 minutes for the other ranks
    while rank_processes(tmp_path):
        assert time.monotonic() < patience, "orphans are left"
        time.sleep(0.05)
    assert not (tmp_path / "output" / "failure").exists()


def test_a_rank_whose_job_has_gone_leaves_no_failure(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "entry_point.train", OPTION, str(tmp_path / "gone")],
        env={**os.environ, "ML_ROOT": str(tmp_path)},
        capture_output=True,
    )
    assert done.returncode == ExitCode.FAILED
    assert not (tmp_path / "output").exists()
