"""Each trial of a tuning job writes checkpoints below its own name: all share one S3 prefix."""

import json
from pathlib import Path

import pytest

from entry_point.contract.run_folder import ContractError, RunFolder

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


def test_another_job_has_the_whole_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINING_JOB_NAME", "a-job")
    assert folder(tmp_path, {"optim.lr": "0.1"}).checkpoints == tmp_path / "checkpoints"


def test_a_trial_without_a_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINING_JOB_NAME", raising=False)
    run = folder(tmp_path, TUNED)
    with pytest.raises(ContractError, match="TRAINING_JOB_NAME is not set") as caught:
        _ = run.checkpoints
    assert "\n" not in str(caught.value)
