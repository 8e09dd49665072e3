"""What ``docker run IMAGE`` tells."""

import json
from pathlib import Path

import pytest
import torch

import custom_op
from entry_point.contract import run_folder
from entry_point.supervisor.environment_report import contract_lines, main
from launch.request.input_config import write_contract


def test_the_report_names_versions_operator_and_contract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ML_ROOT", str(tmp_path))
    monkeypatch.setenv("IMAGE_VERSION", "1.2.3")
    monkeypatch.setenv("IMAGE_REVISION", "0123456789ab")
    hosts = ["algo-1", "algo-2"]
    write_contract(tmp_path, ["a=1"], hosts=hosts, current="algo-2", channels=["training"])
    assert main() == 0
    told = capsys.readouterr().out
    assert "image 1.2.3 of revision 0123456789ab" in told
    assert f"torch {torch.__version__.partition('+')[0]}" in told
    assert "build_seconds: " in told
    assert '"current_host": "algo-2"' in told
    assert "channel training: " in told


def test_nothing_there_is_said_and_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_compiler() -> None:
        raise custom_op.BuildError("no C++ compiler")

    monkeypatch.delenv("ML_ROOT", raising=False)
    monkeypatch.setattr(run_folder, "CONTAINER_ROOT", Path("/nonexistent"))
    monkeypatch.setattr(custom_op, "build_info", no_compiler)
    assert main() == 0
    told = capsys.readouterr().out
    assert "no run folder" in told
    assert "no C++ compiler" in told


def test_a_damaged_file_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ML_ROOT", str(tmp_path))
    write_contract(tmp_path, [], hosts=["algo-1"], current="algo-1")
    (tmp_path / "input/config/resourceconfig.json").write_text("{")
    (tmp_path / "input/config/inputdataconfig.json").unlink()
    told = list(contract_lines())
    assert any(line.startswith("resourceconfig.json: unreadable") for line in told)
    assert "inputdataconfig.json: missing" in told
    assert any(line == f"hyperparameters.json: {json.dumps({})}" for line in told)
