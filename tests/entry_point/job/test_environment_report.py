"""What `docker run IMAGE` prints."""

import json
from pathlib import Path

import pytest
import torch

import custom_op
from entry_point.environment_report import report
from entry_point.job import run_folder


def test_the_report_shows_versions_operator_and_the_files_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ML_ROOT", str(tmp_path))
    monkeypatch.setenv("IMAGE_REVISION", "0123456789ab")
    (folder := tmp_path / "input/config").mkdir(parents=True)
    (folder / "resourceconfig.json").write_text(json.dumps({"current_host": "algo-2"}, indent=2))
    (folder / "inputdataconfig.json").write_text("{")
    (tmp_path / "input/data/training").mkdir(parents=True)
    assert report() == 0
    printed = capsys.readouterr().out
    assert "IMAGE_REVISION=0123456789ab\n" in printed
    assert f"PyTorch version: {torch.__version__}" in printed
    assert "build_seconds: " in printed
    assert 'resourceconfig.json: { "current_host": "algo-2" }\n' in printed
    assert "inputdataconfig.json: {\n" in printed  # as it is, for whoever looks for the damage
    assert f"channel training: {tmp_path}/input/data/training\n" in printed


@pytest.mark.parametrize(
    "error",
    [
        custom_op.BuildError("no C++ compiler"),
        PermissionError(13, "Permission denied", "/opt/c++"),
        RuntimeError("no schema"),
    ],
)
def test_the_report_shows_what_is_missing_and_goes_on(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.delenv("ML_ROOT", raising=False)
    monkeypatch.setattr(run_folder, "CONTAINER_ROOT", Path("/nonexistent"))
    monkeypatch.setattr(custom_op, "build_info", fail)
    assert report() == 0
    printed = capsys.readouterr().out
    assert f"  {type(error).__name__}: {error}\n" in printed
    assert "no run folder" in printed and "PyTorch version: " in printed
