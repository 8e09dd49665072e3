"""A job whose disk fails stops with a checkpoint, and says what to do."""

from collections.abc import Callable
from pathlib import Path

import pytest

from entry_point.job.program import ExitCode
from tests.entry_point.job.test_processes import TWO_RANKS, wait_for_steps
from tests.entry_point.training import forked
from tests.entry_point.training.checkpoints import failing_reads
from tests.entry_point.training.training_jobs import read_records, start_job

FAILING = (
    "model.name=tests.entry_point.training.checkpoints.failing_reads.net",
    "trainer.log_every_steps=1",
    "pipeline.num_workers=1",
)
EPOCHS = "trainer.epochs=4000"


@pytest.fixture
def trigger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes the reads of a split fail."""
    file = tmp_path / "fail"
    monkeypatch.setenv(failing_reads.VARIABLE, str(file))

    def fail(split: str) -> None:
        file.with_suffix(".new").write_text(f"/{split}/")
        file.with_suffix(".new").rename(file)

    return fail


@pytest.mark.parametrize(
    ("engine", "split", "module"),
    [("threads", "train", "entry_point"), ("workers", "val", "entry_point.train")],
)
def test_job_whose_disk_fails_stops_with_a_checkpoint_and_resumes(
    engine: str,
    split: str,
    module: str,
    photo_folder: Path,
    tmp_path: Path,
    trigger: Callable[[str], None],
) -> None:
    root, overrides = tmp_path / "run", [*FAILING, f"pipeline={engine}"]
    process = start_job(root, photo_folder, [*overrides, EPOCHS], module=module)
    wait_for_steps(root, process, 3)
    trigger(split)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == ExitCode.FAILED, output
    reason = [line for line in output.splitlines() if line.startswith("train: ")]
    assert len(reason) == 1 and f"/{split}/" in reason[0] and "Traceback" not in output
    assert "could not be read (Input/output error)" in reason[0]
    assert reason[0].endswith("then the same command resumes from here")
    assert (root / "output/failure").read_text() == reason[0].removeprefix("train: ")
    stopped_at = max(record["step"] for record in read_records(root))
    (tmp_path / "fail").unlink()
    epochs = stopped_at // 3 + 1
    # The server that forks has the environment of an earlier test.
    environment = {failing_reads.VARIABLE: str(tmp_path / "fail"), failing_reads.PAUSE: "0"}
    more = [*overrides, f"trainer.epochs={epochs}"]
    assert forked.run(root, photo_folder, more, 1, environment) == ExitCode.FINISHED
    assert f"checkpoints/step-{stopped_at:09d}.pt" in (root / "log").read_text()
    assert [r["step"] for r in read_records(root) if "loss" in r] == [*range(1, 3 * epochs + 1)]


def test_ranks_whose_disk_fails_while_they_train_end_with_its_reason_and_resume(
    photo_folder: Path,
    tmp_path: Path,
    trigger: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others wait for the gradients of a rank without images: the last checkpoint counts."""
    monkeypatch.setenv(failing_reads.RANK, "1")
    root, overrides = tmp_path / "run", [*FAILING, *TWO_RANKS, "pipeline=threads"]
    process = start_job(root, photo_folder, [*overrides, EPOCHS])
    wait_for_steps(root, process, 6)
    trigger("train")
    output, _ = process.communicate(timeout=240)
    assert process.returncode == ExitCode.FAILED, output
    assert output.count("train: ") == 1 and "Traceback" not in output
    reason = (root / "output/failure").read_text()
    assert "/train/" in reason and "could not be read (Input/output error)" in reason
    (tmp_path / "fail").unlink()
    saved = max(int(path.stem[5:]) for path in (root / "checkpoints").glob("step-*.pt"))
    more = [*overrides, f"trainer.epochs={saved // 3 + 1}"]
    environment = {failing_reads.VARIABLE: str(tmp_path / "fail")}
    assert forked.run(root, photo_folder, more, 2, environment) == ExitCode.FINISHED
    assert f"resuming from {root}/checkpoints/step-{saved:09d}.pt" in (root / "log").read_text()
