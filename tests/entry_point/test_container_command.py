"""What the image does with and without a command."""

import os
import subprocess
import sys
from pathlib import Path

from entry_point.contract import exit_codes
from launch.request.local_run import write_input_config


def container(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "entry_point.container", *arguments],
        env={**os.environ, "ML_ROOT": str(root)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_without_a_command_it_prints_a_report(tmp_path: Path) -> None:
    done = container(tmp_path)
    assert done.returncode == exit_codes.FINISHED, done.stderr
    assert done.stdout.startswith("versions\n")


def test_without_a_command_a_job_trains(tmp_path: Path) -> None:
    """Local mode of SageMaker's SDK v3 passes none. Here the job fails at its first setting."""
    write_input_config(tmp_path, ["trainer.epochs=0"], hosts=["algo-1"], current="algo-1")
    done = container(tmp_path)
    assert done.returncode == exit_codes.USAGE
    assert done.stderr.startswith("train: trainer.epochs=0: ")
    assert (tmp_path / "output" / "failure").read_text().startswith("trainer.epochs=0: ")


def test_an_unknown_command_is_one_line_with_the_known_ones(tmp_path: Path) -> None:
    done = container(tmp_path, "sevre")
    assert done.returncode == exit_codes.USAGE
    assert done.stderr.startswith("container: sevre: no such command; use train, ")
    assert "serve" in done.stderr and done.stderr.count("\n") == 1
