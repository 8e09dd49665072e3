"""What a message names to resume a run is what its launcher takes."""

import errno
import json
from pathlib import Path

import pytest

from entry_point.job.program import run_program
from entry_point.job.run_folder import JOB_NAME, RunFolder
from launch.local import write_input_config


def test_a_run_of_this_machine_is_resumed_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(JOB_NAME, raising=False)
    root = tmp_path / "20261126-203509"
    write_input_config(root, [], hosts=["algo-1"], current="algo-1")
    assert RunFolder(root).resumed_by == "the same command with name=20261126-203509"
    monkeypatch.setenv(JOB_NAME, "in-a-container")  # where its folder is /opt/ml
    assert RunFolder(root).resumed_by == "the same command with name=in-a-container"


def test_a_job_of_a_platform_is_resumed_by_its_checkpoints(tmp_path: Path) -> None:
    config = tmp_path / "input/config"
    config.mkdir(parents=True)
    assert RunFolder(tmp_path).resumed_by == "the same command"
    resources = {"current_instance_type": "ml.g6.2xlarge", "hosts": ["algo-1"]}
    (config / "resourceconfig.json").write_text(json.dumps(resources))
    assert RunFolder(tmp_path).resumed_by == "a job with the same checkpoints"


def test_a_full_disk_is_answered_with_what_resumes(capsys: pytest.CaptureFixture[str]) -> None:
    def program() -> int:
        raise OSError(errno.ENOSPC, "No space left on device", "/runs/x")

    run_program("train", program, again=lambda: "the same command with name=x")
    advice = "free up space and run the same command with name=x again\n"
    assert capsys.readouterr().err.endswith(advice)
