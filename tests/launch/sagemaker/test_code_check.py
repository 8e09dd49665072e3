"""Before a launch, the code that settings name is checked in `.venv`, by the job's own program."""

from pathlib import Path

import pytest

from entry_point.check_code import SEAMS
from entry_point.config.train_config import load_train_config
from launch.sagemaker import checks
from launch.sagemaker.config import LaunchConfig


def said(overrides: str) -> list[str]:
    config, _ = load_train_config(overrides.split())
    return checks.code_problems(config, overrides.split())


def test_the_launch_reports_code_that_is_not_there_with_everything_else() -> None:
    overrides = ["model.name=project.models.smallnet", "data=folder"]
    config, _ = load_train_config(overrides)
    lines = checks.job_problems(config, overrides, LaunchConfig())
    assert [line.partition(":")[0] for line in lines] == [
        "data=folder",
        "model.name=project.models.smallnet",
    ]


@pytest.mark.parametrize("key", ["loggers", *(seam.key for seam in SEAMS)])
def test_a_path_in_any_setting_starts_the_check(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setattr(checks, "PYTHON", Path("/bin/false"))
    value = "[a.b]" if key == "loggers" else "a.b"
    (line,) = said(f"{key}={value}")
    assert line.startswith("the code that settings name could not be checked in .venv: ")


def test_names_that_the_schema_knows_start_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "PYTHON", Path("/bin/false"))
    assert said("optim.name=adamw data=demo task.name=regression loggers=[mlflow]") == []


def test_without_the_jobs_environment_a_line_says_that_nothing_was_checked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checks, "PYTHON", tmp_path / "none")
    assert said("model.name=project.models.nothing") == []
    (line,) = capsys.readouterr().err.splitlines()
    assert "not checked" in line and "make setup" in line
