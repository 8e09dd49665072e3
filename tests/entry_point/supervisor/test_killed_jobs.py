"""A job that is killed while it trains: what its ranks hold, and what it leaves behind."""

import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from entry_point.contract.run_folder import RunFolder
from tests.entry_point.supervisor.test_processes import (
    ENDLESS,
    TWO_RANKS,
    rank_processes,
    wait_for_steps,
)
from tests.entry_point.training.training_jobs import run_job, start_job

WAYS = {
    "worker": ("pipeline.num_workers=1",),
    "two ranks": TWO_RANKS,
    "worker processes": ("pipeline=workers", "pipeline.num_workers=1"),
}
PATIENCE_S = 60.0


@dataclass
class KilledJob:
    """What was seen of a job before it was killed, after that, and after the next one."""

    lock: Path
    stdin: dict[int, Path]
    """Rank -> the file that it has as standard input."""
    outlived: dict[int, int]
    left: list[Path]
    left_by_next: list[Path]


@pytest.fixture(scope="module", params=list(WAYS.values()), ids=list(WAYS))
def killed(
    request: pytest.FixtureRequest, photo_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> KilledJob:
    root, overrides = tmp_path_factory.mktemp("killed"), request.param
    # A folder whose name leaves room for those of sockets below it.
    with (
        tempfile.TemporaryDirectory(prefix="job-") as name,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("TMPDIR", name)
        process = start_job(root, photo_folder, [*ENDLESS, *overrides])
        wait_for_steps(root, process, 1)
        ranks = rank_processes(root)
        stdin = {rank: Path(f"/proc/{pid}/fd/0").resolve() for rank, pid in ranks.items()}
        process.kill()
        process.communicate(timeout=PATIENCE_S)
        patience = time.monotonic() + PATIENCE_S
        while (outlived := rank_processes(root)) and time.monotonic() < patience:
            time.sleep(0.05)
        left = list(Path(name).iterdir())
        shutil.rmtree(root / "checkpoints")
        run_job(root, photo_folder, ["trainer.epochs=1", *overrides])
        left_by_next = list(Path(name).iterdir())
    return KilledJob(RunFolder(root).lock, stdin, outlived, left, left_by_next)


def test_every_rank_holds_the_lock(killed: KilledJob) -> None:
    assert killed.stdin and set(killed.stdin.values()) == {killed.lock}


def test_no_rank_outlives_a_killed_job(killed: KilledJob) -> None:
    assert not killed.outlived


def test_a_start_removes_what_a_killed_job_left_in_the_temporary_folder(killed: KilledJob) -> None:
    assert killed.left
    # torch's cache is for later processes.
    assert not [p for p in killed.left_by_next if not p.name.startswith("torchinductor")]
