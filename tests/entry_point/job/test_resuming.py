"""What a message names to resume a run is what its launcher takes."""

import errno
from pathlib import Path

import pytest

from entry_point.job.program import run_program
from entry_point.job.run_folder import RUN_NAME, RunFolder
from tests.platform_files import write_input_config


def test_a_run_of_this_machine_is_resumed_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(RUN_NAME, raising=False)
    assert RunFolder(tmp_path).resumed_by == "the same command"
    monkeypatch.setenv(RUN_NAME, "20261126-203509")
    assert RunFolder(tmp_path).resumed_by == "the same command with name=20261126-203509"


def test_a_job_of_sagemaker_is_resumed_by_its_checkpoints(tmp_path: Path) -> None:
    write_input_config(tmp_path, [])
    assert RunFolder(tmp_path).resumed_by == "a job with the same checkpoints"


def test_a_full_disk_is_answered_with_what_resumes(capsys: pytest.CaptureFixture[str]) -> None:
    def program() -> int:
        raise OSError(errno.ENOSPC, "No space left on device", "/runs/x")

    run_program("train", program, again=lambda: "the same command with name=x")
    advice = "free up space and run the same command with name=x again\n"
    assert capsys.readouterr().err.endswith(advice)
