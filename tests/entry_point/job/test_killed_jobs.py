"""A job that is killed while it trains: its ranks do not outlive it, and the folder is free."""

import time
from pathlib import Path

import pytest

from entry_point.job.run_folder import RunFolder
from entry_point.job.run_lock import holding
from tests.entry_point.job.test_processes import ENDLESS, TWO_RANKS, wait_for_steps
from tests.entry_point.training.forked_ranks import rank_processes
from tests.entry_point.training.training_jobs import start_job

WAYS = {
    "worker": ("pipeline.num_workers=1",),
    "two ranks": TWO_RANKS,
    "worker processes": ("pipeline=workers", "pipeline.num_workers=1"),
}
PATIENCE_S = 60.0


@pytest.mark.parametrize("overrides", WAYS.values(), ids=WAYS)
def test_no_rank_outlives_a_killed_job_and_the_next_may_start_at_once(
    overrides: tuple[str, ...], photo_folder: Path, tmp_path: Path
) -> None:
    process = start_job(tmp_path, photo_folder, [*ENDLESS, *overrides])
    wait_for_steps(tmp_path, process, 1)
    assert rank_processes(tmp_path)
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    with holding(RunFolder(tmp_path)):
        pass
    patience = time.monotonic() + PATIENCE_S
    while rank_processes(tmp_path):
        assert time.monotonic() < patience, "orphans are left"
        time.sleep(0.05)
