"""What ``docker run IMAGE`` tells."""

import json
from pathlib import Path

import pytest
import torch

import custom_op
from entry_point.environment_report import contract_lines, main
from entry_point.run_folder import RunFolder
from launch.contract import write_contract


def test_the_report_names_versions_operator_and_contract(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = ["algo-1", "algo-2"]
    write_contract(tmp_path, ["a=1"], hosts=hosts, current="algo-2", channels=["training"])
    assert main(RunFolder(tmp_path)) == 0
    told = capsys.readouterr().out
    assert f"torch {torch.__version__.partition('+')[0]}" in told
    assert "build_seconds: " in told
    assert '"current_host": "algo-2"' in told
    assert "channel training: " in told


def test_nothing_there_is_said_and_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_compiler() -> None:
        raise custom_op.BuildError("no C++ compiler")

    monkeypatch.setattr(custom_op, "build_info", no_compiler)
    assert main(None) == 0
    told = capsys.readouterr().out
    assert "no /opt/ml here" in told
    assert "no C++ compiler" in told


def test_a_damaged_file_is_said(tmp_path: Path) -> None:
    write_contract(tmp_path, [], hosts=["algo-1"], current="algo-1")
    (tmp_path / "input/config/resourceconfig.json").write_text("{")
    (tmp_path / "input/config/inputdataconfig.json").unlink()
    told = list(contract_lines(RunFolder(tmp_path)))
    assert any(line.startswith("resourceconfig.json: unreadable") for line in told)
    assert "inputdataconfig.json: missing" in told
    assert any(line == f"hyperparameters.json: {json.dumps({})}" for line in told)
