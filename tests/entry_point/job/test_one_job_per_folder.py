"""A run folder belongs to one job: who holds its lock, and who may write into it."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from entry_point.job.run_folder import ContractError, RunFolder
from entry_point.job.run_lock import holding
from tests.entry_point.job.test_processes import ENDLESS, TWO_RANKS
from tests.entry_point.training.forked_ranks import rank_processes
from tests.entry_point.training.training_jobs import write_job

HOLD = """
import sys
from pathlib import Path
from entry_point.job.run_folder import RunFolder
from entry_point.job.run_lock import holding
with holding(RunFolder(Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_run_folder_is_refused_while_its_job_lives_and_free_once_that_is_killed(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    job = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert job.stdout is not None and job.stdout.readline() == "held\n"
    refused = rf"another process is training in {tmp_path}; wait for it, stop it"
    with pytest.raises(ContractError, match=refused), holding(RunFolder(tmp_path)):
        pass
    job.kill()
    job.communicate()
    with holding(RunFolder(tmp_path)):
        pass


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
