"""A job that is killed while it trains: its ranks hold the lock and do not outlive it."""

import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from entry_point.job.run_folder import RunFolder
from tests.entry_point.job.test_processes import ENDLESS, TWO_RANKS, wait_for_steps
from tests.entry_point.training.forked_ranks import rank_processes
from tests.entry_point.training.training_jobs import start_job

WAYS = {
    "worker": ("pipeline.num_workers=1",),
    "two ranks": TWO_RANKS,
    "worker processes": ("pipeline=workers", "pipeline.num_workers=1"),
}
PATIENCE_S = 60.0


@dataclass
class KilledJob:
    """What was seen of a job before and after it was killed."""

    lock: Path
    files: dict[int, set[Path]]
    """Rank -> the files that it has open."""
    outlived: dict[int, int]


@pytest.fixture(scope="module", params=list(WAYS.values()), ids=list(WAYS))
def killed(
    request: pytest.FixtureRequest, photo_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> KilledJob:
    root, overrides = tmp_path_factory.mktemp("killed"), request.param
    process = start_job(root, photo_folder, [*ENDLESS, *overrides])
    wait_for_steps(root, process, 1)
    ranks = rank_processes(root)
    files = {
        rank: {path.resolve() for path in Path(f"/proc/{pid}/fd").iterdir()}
        for rank, pid in ranks.items()
    }
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    patience = time.monotonic() + PATIENCE_S
    while (outlived := rank_processes(root)) and time.monotonic() < patience:
        time.sleep(0.05)
    return KilledJob(RunFolder(root).lock, files, outlived)


def test_every_rank_holds_the_lock(killed: KilledJob) -> None:
    assert killed.files and all(killed.lock in files for files in killed.files.values())


def test_no_rank_outlives_a_killed_job(killed: KilledJob) -> None:
    assert not killed.outlived
