"""A misspelt flag, command or variable is named before anything happens."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from entry_point.__main__ import COMMANDS
from launch import docker, image
from launch.sagemaker import __main__ as sagemaker
from tests import forkserver

ROOT = Path(__file__).resolve().parents[2]


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", "-n", *arguments], cwd=ROOT, capture_output=True, text=True)


def test_a_variable_that_nothing_reads_stops_make() -> None:
    done = make("sagemaker-train", "DRYRUN=1", "CXX=g++")
    assert "CXX DRYRUN: no such variable, must be one of ARGS ONLY" in done.stderr
    assert done.returncode and not done.stdout


def test_a_misspelt_target_is_answered_with_where_they_are() -> None:
    done = subprocess.run(["make", "trian"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("make trian: no such target; make help lists them\n")


def test_clean_removes_nothing_if_it_is_asked_for_something_else() -> None:
    done = make("clean", "ARGS=runs")
    assert "clean takes no ARGS; rm -r runs/NAME removes a run" in done.stderr
    assert done.returncode and not done.stdout
    assert make("clean").stdout.startswith("rm -rf .venv ")


def test_every_variable_of_the_container_commands_is_known_to_make() -> None:
    known = (ROOT / "Makefile").read_text().partition("VARIABLES := ")[2].partition("GIVEN")[0]
    for program in (docker, image):
        read = re.findall("^([A-Z_]{4,})  ", program.__doc__ or "", re.MULTILINE)
        assert read and set(read) <= set(known.replace("\\", " ").split())


def test_a_packing_job_needs_no_torch_where_it_is_launched() -> None:
    assert "launch.environment launch\n" in make("sagemaker-dataset").stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["train", "--wiat", "a=1"], "unrecognized arguments: --wiat"),
        (["logs", "x", "--folow"], "unrecognized arguments: --folow"),
        (["trian"], "invalid choice: 'trian' (choose from 'train'"),
        (["dataset", "--wiat", "source=s3://a"], "unrecognized arguments: --wiat"),
    ],
)
def test_a_misspelt_flag_is_named(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        sagemaker.main(arguments)
    assert ended.value.code == 2
    assert line in capsys.readouterr().err.splitlines()[-1]


SETTINGS = {
    **dict.fromkeys(("train", "sweep", "show-batch"), ("data.root=", "trainer.epochs=5 ")),
    "predict": ("input=null", "csv=false"),
    "serve": ("serve.max_batch=",),
    "optimize": ("source=", "quality=95 "),
    "check-dataset": ("root=(required)",),
}


def help_of(program: Sequence[str], tmp_path: Path) -> str:
    log, errors = tmp_path / "log", tmp_path / "errors"
    done = forkserver.start(["-m", *program, "--help"], log, errors=errors)
    told, problems = done.communicate(timeout=60)
    assert done.returncode == 0, problems
    return told


def require_settings(told: str, *keys: str) -> None:
    for key in keys:
        (line,) = (each for each in told.splitlines() if each.startswith(f"  {key}"))
        assert len(line) <= 100 and line[37:].strip()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_prints_its_usage_and_settings(name: str, tmp_path: Path) -> None:
    told = help_of(["entry_point", name], tmp_path)
    assert told.startswith(f"python -m entry_point {name}") and COMMANDS[name].meaning in told
    require_settings(told, *SETTINGS.get(name, ()))


@pytest.mark.parametrize("name", ["docker", "image", "local", "setup_aws"])
def test_help_of_a_launcher_prints_its_usage(name: str, tmp_path: Path) -> None:
    told = help_of([f"launch.{name}"], tmp_path)
    assert f"python -m launch.{name}" in told
    require_settings(told, *(SETTINGS["train"] if name == "local" else ()))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_imports_no_torch(name: str) -> None:
    program = (
        "import sys; from entry_point.__main__ import main\n"
        f"main([{name!r}, '--help']); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", [[], *([name] for name in sagemaker.COMMANDS)])
def test_help_prints_the_usage(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        sagemaker.main([*command, "--help"])
    told = capsys.readouterr()
    assert ended.value.code == 0 and not told.err
    assert "usage: python -m launch.sagemaker" in told.out
    assert all(f"\n{name} " in told.out for name in sagemaker.COMMANDS)
