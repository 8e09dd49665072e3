"""A job that fails before its first step leaves the reason, and nothing to resume or to serve."""

from pathlib import Path

import pytest

from entry_point.job.program import ExitCode
from tests.entry_point.job.test_processes import TWO_RANKS
from tests.entry_point.training.training_jobs import read_records, run_job


def files(root: Path) -> set[str]:
    inputs = root / "input"
    found = (path for path in root.rglob("*") if inputs not in path.parents and path.is_file())
    return {str(path.relative_to(root)) for path in found}


@pytest.mark.parametrize("ranks", [(), TWO_RANKS])
def test_a_failed_start_leaves_its_reason_but_no_checkpoint_and_no_model(
    ranks: tuple[str, ...], tmp_path: Path, photo_folder: Path
) -> None:
    run_job(
        tmp_path,
        photo_folder,
        ["model.name=tests.own_models.useless_net", *ranks],
        code=ExitCode.FAILED,
    )
    assert not [name for name in files(tmp_path) if not name.startswith("output/")]
    assert (
        (tmp_path / "output/failure").read_text().startswith("ArithmeticError: cannot take a step")
    )


def test_a_failed_start_keeps_what_an_earlier_one_has_left(
    tmp_path: Path, photo_folder: Path
) -> None:
    run_job(tmp_path, photo_folder, ["trainer.epochs=1"])
    before = files(tmp_path)
    run_job(tmp_path, photo_folder, ["trainer.epochs=1", "optim.lr=0.5"], code=ExitCode.USAGE)
    assert files(tmp_path) == before | {"output/failure"}
    assert read_records(tmp_path)[-1]["step"] == 3


def test_a_job_that_fails_after_a_step_keeps_its_metrics(
    tmp_path: Path, photo_folder: Path
) -> None:
    failing = ("model.name=tests.own_models.failing_net", "trainer.log_every_steps=1")
    run_job(tmp_path, photo_folder, [*failing, *TWO_RANKS], code=ExitCode.FAILED)
    assert read_records(tmp_path)[-1]["step"] == 2
