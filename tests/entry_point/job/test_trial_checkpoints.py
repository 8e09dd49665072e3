"""Jobs that share one S3 prefix write checkpoints below their own names: a tuning job's trials, and
the jobs of one object of the SageMaker SDK."""

import json
from pathlib import Path

import pytest

from entry_point.job.run_folder import PER_JOB, ContractError, RunFolder

TUNED = {"optim.lr": "0.1", "_tuning_objective_metric": "validation:accuracy"}


def folder(root: Path, hyperparameters: object) -> RunFolder:
    path = root / "input" / "config" / "hyperparameters.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(hyperparameters))
    return RunFolder(root)


def test_a_trial_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINING_JOB_NAME", "rates-001-0123abcd")
    run = folder(tmp_path, TUNED)
    other = tmp_path / "checkpoints" / "rates-000-89abcdef" / "step-1.pt"
    other.parent.mkdir(parents=True)
    other.touch()
    run.create()
    assert run.checkpoints == tmp_path / "checkpoints" / "rates-001-0123abcd"
    assert run.checkpoints.is_dir() and not any(run.checkpoints.iterdir())


@pytest.mark.parametrize(
    ("hyperparameters", "per_job", "own"),
    [({"optim.lr": "0.1"}, "", ""), (TUNED, "true", "a-job"), ({}, "true", "a-job")],
)
def test_only_a_job_that_shares_its_prefix_has_a_folder_of_its_own(
    hyperparameters: object, per_job: str, own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PER_JOB, per_job)
    monkeypatch.setenv("TRAINING_JOB_NAME", "a-job")
    assert folder(tmp_path, hyperparameters).checkpoints == tmp_path / "checkpoints" / own


@pytest.mark.parametrize("hyperparameters", [TUNED, {}])
def test_such_a_job_without_a_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hyperparameters: dict[str, str]
) -> None:
    if not hyperparameters:
        monkeypatch.setenv(PER_JOB, "true")
    monkeypatch.delenv("TRAINING_JOB_NAME", raising=False)
    run = folder(tmp_path, hyperparameters)
    with pytest.raises(ContractError, match="TRAINING_JOB_NAME is not set") as caught:
        _ = run.checkpoints
    assert "\n" not in str(caught.value)
