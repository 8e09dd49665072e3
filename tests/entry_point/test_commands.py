"""What the image does with and without a command."""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from entry_point.__main__ import main
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


def test_help_can_be_asked_for_in_three_ways(capfd: pytest.CaptureFixture[str]) -> None:
    printed = set()
    for word in ("--help", "-h", "help"):
        assert main([word]) == ExitCode.FINISHED
        printed.add(capfd.readouterr().out)
    assert len(printed) == 1 and "\n  check-dataset " in printed.pop()


def in_folder_of_another(
    root: Path, mode: int, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run a command whose user has these rights in the run folder."""
    write_input_config(root, [])
    (root / "output").chmod(mode)
    root.chmod(mode)
    try:
        return container(root, *arguments, preexec=without_privilege)
    finally:
        root.chmod(0o700)
        (root / "output").chmod(0o700)


@pytest.mark.parametrize(("mode", "command"), [(0o000, "train"), (0o500, "train"), (0o500, "")])
def test_a_run_folder_of_another_user_is_one_line(tmp_path: Path, mode: int, command: str) -> None:
    root = tmp_path / "ml"
    (line,) = in_folder_of_another(root, mode, *command.split()).stderr.splitlines()
    assert f"cannot be written by user {os.getuid()} (Permission denied)" in line
    assert f"run as the owner of {root}, mount it writable" in line


def test_without_a_command_it_prints_a_report_also_if_it_may_not_read_the_folder(
    tmp_path: Path,
) -> None:
    done = in_folder_of_another(tmp_path / "ml", 0o000)
    assert (done.returncode, done.stderr) == (ExitCode.FINISHED, "")
    assert done.stdout.startswith("variables\n")


def test_without_a_command_a_job_trains(tmp_path: Path) -> None:
    """Local mode of SageMaker's SDK v3 passes none. Here the job fails at its first setting."""
    write_input_config(tmp_path, ["trainer.epochs=0"])
    done = container(tmp_path)
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.startswith("train: trainer.epochs=0: ")
    assert (tmp_path / "output" / "failure").read_text().startswith("trainer.epochs=0: ")


def test_an_unknown_command_is_one_line_with_the_known_ones(tmp_path: Path) -> None:
    done = container(tmp_path, "sevre")
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.startswith("entry_point: sevre: no such command, must be one of train, ")
    assert done.stderr.endswith("; did you mean serve?\n") and done.stderr.count("\n") == 1


# A command, what it needs, and the misspelt setting.
MISSPELT = (
    "train optim.lrr=1",
    "serve serve.prt=1",
    "optimize source=x output=y qualty=9",
    "optimize source=x output=y data.formt=folder",
    "check-dataset root=x rot=x",
    "check-dataset root=x data.formt=folder",
    "predict input=x output_dir=y batch_siz=1",
    "predict input=x output_dir=y data.formt=folder",
    "evaluate splt=val",
    "evaluate data.rot=x",
    "show-batch optim.lrr=1",
    "sweep name=x optim.lrr=1,2",
)
RUN_ALL = """
import contextlib, io, json, sys
from entry_point.__main__ import main
ended = []
for command in sys.argv[1:]:
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        code = main(command.split())
    ended.append((code, errors.getvalue(), "torch" in sys.modules))
print(json.dumps(ended))
"""


def test_a_misspelt_setting_of_any_command_is_one_line_without_torch(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL, *MISSPELT],
        env={**os.environ, "ML_ROOT": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    for given, (code, said, has_torch) in zip(MISSPELT, json.loads(done.stdout), strict=True):
        command, *_, wrong = given.split()
        (line,) = said.splitlines()
        assert line.startswith(f"{command}: {wrong.partition('=')[0]}=") and "did you mean" in line
        assert (code, has_torch) == (ExitCode.USAGE, False)
