"""A job whose data never arrives stops when asked to, with a checkpoint."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from entry_point.job.program import ExitCode
from tests.entry_point.data.engines.every_engine import has_ended
from tests.entry_point.job.test_processes import TWO_RANKS
from tests.entry_point.training import forked
from tests.entry_point.training.checkpoints import hung_reads
from tests.entry_point.training.training_jobs import read_records, start_job
from tests.forkserver import Program

ENDLESS = (
    "model.name=tests.entry_point.training.checkpoints.hung_reads.net",
    "trainer.log_every_steps=1",
)


def wait_until(condition: Callable[[], object], process: Program | None = None) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process is None or process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "the job does not get there"
        time.sleep(0.05)


def _stop(process: Program) -> str:
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == ExitCode.STOPPED, output
    assert "stopped on request" in output
    return output


def _resume(root: Path, data: Path, overrides: list[str], trigger: Path, ranks: int) -> None:
    reads = {hung_reads.VARIABLE: str(trigger)}
    assert forked.run(root, data, overrides, ranks, environment=reads) == ExitCode.FINISHED


def steps_of(root: Path) -> int:
    metrics = root / "checkpoints/metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


@pytest.mark.parametrize(
    ("engine", "workers", "split", "module"),
    [
        ("threads", 1, "train", "entry_point"),
        ("threads", 2, "val", "entry_point.train"),
        ("pillow", 0, "train", "entry_point"),
    ],
)
def test_job_whose_read_hangs_stops_with_a_checkpoint_and_resumes(
    engine: str,
    workers: int,
    split: str,
    module: str,
    photo_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root, trigger = tmp_path / "run", tmp_path / "hang"
    monkeypatch.setenv(hung_reads.VARIABLE, str(trigger))
    overrides = [*ENDLESS, f"pipeline={engine}", f"pipeline.num_workers={workers}"]
    process = start_job(root, photo_folder, [*overrides, "trainer.epochs=400"], module=module)
    wait_until(lambda: steps_of(root) > 2, process)
    trigger.with_suffix(".new").write_text(f"/{split}/")
    trigger.with_suffix(".new").rename(trigger)
    wait_until(trigger.with_suffix(".reached").exists, process)
    _stop(process)
    stopped_at = read_records(root)[-1]["step"]
    trigger.unlink()
    epochs = stopped_at // 3 + 1
    _resume(root, photo_folder, [*overrides, f"trainer.epochs={epochs}"], trigger, ranks=1)
    assert f"checkpoints/step-{stopped_at:09d}.pt" in (root / "log").read_text()
    assert [r["step"] for r in read_records(root) if "loss" in r] == [*range(1, 3 * epochs + 1)]


@pytest.mark.parametrize(("hung", "split"), [("0", "val"), ("1", "train"), (None, "val")])
def test_job_of_two_ranks_whose_read_hangs_stops_with_a_checkpoint_and_resumes(
    hung: str | None,
    split: str,
    photo_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root, trigger = tmp_path / "run", tmp_path / "hang"
    monkeypatch.setenv(hung_reads.VARIABLE, str(trigger))
    if hung is not None:
        monkeypatch.setenv(hung_reads.RANK, hung)
    overrides = [*ENDLESS, *TWO_RANKS, "pipeline=threads", "pipeline.num_workers=1"]
    process = start_job(root, photo_folder, [*overrides, "trainer.epochs=4000"])
    wait_until(lambda: steps_of(root) > 2, process)
    trigger.with_suffix(".new").write_text(f"/{split}/")
    trigger.with_suffix(".new").rename(trigger)
    wait_until(trigger.with_suffix(".reached").exists, process)
    output = _stop(process)
    assert "Traceback" not in output and not (root / "output/failure").exists()
    stopped_at = max(record["step"] for record in read_records(root))
    trigger.unlink()
    epochs = stopped_at // 3 + 1
    _resume(root, photo_folder, [*overrides, f"trainer.epochs={epochs}"], trigger, ranks=2)
    assert f"checkpoints/step-{stopped_at:09d}.pt" in (root / "log").read_text()
    assert [r["step"] for r in read_records(root) if "loss" in r] == [*range(1, 3 * epochs + 1)]


def test_job_whose_workers_hang_stops_with_a_checkpoint_and_leaves_no_process(
    photo_folder: Path, tmp_path: Path
) -> None:
    root = tmp_path / "run"
    overrides = ["pipeline=workers", "pipeline.num_workers=1", "trainer.epochs=4000"]
    process = start_job(root, photo_folder, overrides, module="entry_point.train")
    wait_until(lambda: steps_of(root) > 2, process)
    workers = _children(process.pid)
    assert workers
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    _stop(process)
    assert [*(root / "checkpoints").glob("*.pt")]
    wait_until(lambda: all(map(has_ended, workers)))


def _children(pid: int) -> list[int]:
    """The batch-making processes of a trainer."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return [child for child in found if b"resource_tracker" not in _command(child)]


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
