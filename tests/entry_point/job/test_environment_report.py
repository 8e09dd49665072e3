"""What `docker run IMAGE` prints."""

import json
from pathlib import Path

import pytest
import torch

import custom_op
from entry_point.environment_report import main, run_folder_lines
from entry_point.job import run_folder
from tests.platform_files import write_input_config


def test_the_report_shows_versions_operator_and_platform_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ML_ROOT", str(tmp_path))
    monkeypatch.setenv("IMAGE_VERSION", "1.2.3")
    monkeypatch.setenv("IMAGE_REVISION", "0123456789ab")
    hosts = ["algo-1", "algo-2"]
    write_input_config(tmp_path, ["a=1"], hosts=hosts, current="algo-2", channels=["training"])
    assert main() == 0
    printed = capsys.readouterr().out
    assert "image 1.2.3 of revision 0123456789ab" in printed
    assert f"torch {torch.__version__.partition('+')[0]}" in printed
    assert "build_seconds: " in printed
    assert '"current_host": "algo-2"' in printed
    assert "channel training: " in printed


def test_the_report_shows_what_is_missing_without_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_compiler() -> None:
        raise custom_op.BuildError("no C++ compiler")

    monkeypatch.delenv("ML_ROOT", raising=False)
    monkeypatch.setattr(run_folder, "CONTAINER_ROOT", Path("/nonexistent"))
    monkeypatch.setattr(custom_op, "build_info", no_compiler)
    assert main() == 0
    printed = capsys.readouterr().out
    assert "no run folder" in printed
    assert "no C++ compiler" in printed


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied", "/opt/c++"), RuntimeError("no schema")]
)
def test_the_report_shows_why_the_operator_cannot_be_loaded(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(custom_op, "build_info", fail)
    assert main() == 0
    printed = capsys.readouterr().out
    assert f"  {type(error).__name__}: {error}\n" in printed and "run folder" in printed


def test_the_report_shows_a_damaged_platform_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ML_ROOT", str(tmp_path))
    write_input_config(tmp_path, [])
    (tmp_path / "input/config/resourceconfig.json").write_text("{")
    (tmp_path / "input/config/inputdataconfig.json").unlink()
    printed = list(run_folder_lines())
    assert any(line.startswith("resourceconfig.json: unreadable") for line in printed)
    assert "inputdataconfig.json: missing" in printed
    assert any(line == f"hyperparameters.json: {json.dumps({})}" for line in printed)
