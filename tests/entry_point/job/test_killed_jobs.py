"""A job that is killed: its ranks do not outlive it, and the folder is free."""

import subprocess
import time
from pathlib import Path

import pytest

from entry_point.job.run_folder import RunFolder
from entry_point.job.run_lock import holding
from tests.entry_point.job.test_processes import ENDLESS, TWO_RANKS, wait_for_steps
from tests.entry_point.training.forked_ranks import rank_processes
from tests.entry_point.training.training_jobs import start_job, write_job


def wait_for_orphans(root: Path) -> None:
    """Wait until no rank trains in `root`. An orphan would wait 20 minutes for the others."""
    patience = time.monotonic() + 120
    while rank_processes(root):
        assert time.monotonic() < patience, "orphans are left"
        time.sleep(0.05)


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
    wait_for_orphans(tmp_path)
    assert not (tmp_path / "output" / "failure").exists()


WAYS = {
    "worker": ("pipeline.num_workers=1",),
    "two ranks": TWO_RANKS,
    "worker processes": ("pipeline=workers", "pipeline.num_workers=1"),
}


@pytest.mark.parametrize("overrides", WAYS.values(), ids=WAYS)
def test_no_rank_outlives_a_killed_job_and_the_next_may_start_at_once(
    overrides: tuple[str, ...], photo_folder: Path, tmp_path: Path
) -> None:
    process = start_job(tmp_path, photo_folder, [*ENDLESS, *overrides])
    wait_for_steps(tmp_path, process, 1)
    assert rank_processes(tmp_path)
    process.kill()
    process.communicate(timeout=60)
    with holding(RunFolder(tmp_path)):
        pass
    wait_for_orphans(tmp_path)
