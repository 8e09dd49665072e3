"""What the image does with and without a command."""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from entry_point.__main__ import COMMANDS
from entry_point.job.program import ExitCode
from tests.platform_files import write_input_config

CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, PR_CAPBSET_DROP = 1, 2, 24


def container(
    root: Path, *arguments: str, preexec: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "entry_point", *arguments],
        env={**os.environ, "ML_ROOT": str(root)},
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=preexec,
    )


def without_privilege() -> None:
    """Let root, too, obey the modes of files."""
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["help"]])
def test_help_explains_every_command(tmp_path: Path, arguments: list[str]) -> None:
    done = container(tmp_path, *arguments)
    assert done.returncode == ExitCode.FINISHED
    assert all(f"\n  {command} " in done.stdout for command in COMMANDS)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", [0o000, 0o500])
@pytest.mark.parametrize("command", [["train"], []])
def test_a_run_folder_of_another_user_is_one_line(
    tmp_path: Path, mode: int, command: list[str]
) -> None:
    root = tmp_path / "ml"
    write_input_config(root, [])
    (root / "output").chmod(mode)
    root.chmod(mode)
    try:
        done = container(root, *command, preexec=without_privilege)
    finally:
        root.chmod(0o700)
        (root / "output").chmod(0o700)
    assert "Traceback" not in done.stderr
    if command or mode:
        (line,) = done.stderr.splitlines()
        assert f"cannot be written by user {os.getuid()} (Permission denied)" in line
        assert f"run as the owner of {root}, mount it writable" in line


def test_without_a_command_it_prints_a_report(tmp_path: Path) -> None:
    done = container(tmp_path)
    assert done.returncode == ExitCode.FINISHED, done.stderr
    assert done.stdout.startswith("variables\n")


def test_without_a_command_a_job_trains(tmp_path: Path) -> None:
    """Local mode of SageMaker's SDK v3 passes none. Here the job fails at its first setting."""
    write_input_config(tmp_path, ["trainer.epochs=0"])
    done = container(tmp_path)
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.startswith("train: trainer.epochs=0: ")
    assert (tmp_path / "output" / "failure").read_text().startswith("trainer.epochs=0: ")


def test_a_job_that_was_sent_a_script_ends_with_a_line_and_trains_nothing(tmp_path: Path) -> None:
    """SDK v2's `entry_point=` sends these keys."""
    write_input_config(tmp_path, [])
    sent = {"sagemaker_program": '"mine.py"', "sagemaker_submit_directory": '"s3://bucket/code"'}
    (tmp_path / "input/config/hyperparameters.json").write_text(json.dumps(sent))
    done = container(tmp_path, "train")
    assert done.returncode == ExitCode.USAGE
    (line,) = done.stderr.splitlines()
    assert line.startswith("train: hyperparameter sagemaker_program=mine.py: ")
    assert "job.code=true" in line and "ModelTrainer(source_code=...)" in line
    assert (tmp_path / "output" / "failure").read_text() == line.removeprefix("train: ")


def test_an_unknown_command_is_one_line_with_the_known_ones(tmp_path: Path) -> None:
    done = container(tmp_path, "sevre")
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.startswith("entry_point: sevre: no such command, must be one of train, ")
    assert done.stderr.endswith("; did you mean serve?\n") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "given", "wrong"),
    [
        ("train", [], "optim.lrr=1"),
        ("serve", [], "serve.prt=1"),
        ("optimize", ["source=x", "output=y"], "qualty=9"),
        ("optimize", ["source=x", "output=y"], "data.formt=folder"),
        ("check-dataset", ["root=x"], "rot=x"),
        ("check-dataset", ["root=x"], "data.formt=folder"),
        ("predict", ["input=x", "output_dir=y"], "batch_siz=1"),
        ("predict", ["input=x", "output_dir=y"], "data.formt=folder"),
        ("evaluate", [], "splt=val"),
        ("evaluate", [], "data.rot=x"),
        ("show-batch", [], "optim.lrr=1"),
        ("sweep", ["name=x"], "optim.lrr=1,2"),
    ],
)
def test_a_misspelt_setting_is_one_line_without_torch(
    tmp_path: Path, command: str, given: list[str], wrong: str
) -> None:
    program = (
        "import sys\nfrom entry_point.__main__ import main\n"
        "code = main(sys.argv[1:])\nassert 'torch' not in sys.modules\nsys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, command, *given, wrong],
        env={**os.environ, "ML_ROOT": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == ExitCode.USAGE, done.stderr
    (line,) = done.stderr.splitlines()
    key = wrong.partition("=")[0]
    assert line.startswith(f"{command}: {key}=") and "did you mean" in line
