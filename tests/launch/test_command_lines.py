"""A misspelt flag, command or variable is named before anything happens."""

import re
import subprocess
from pathlib import Path

import pytest

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


PROGRAMS = [
    *(f"launch.{name}" for name in ("docker", "image", "local", "setup_aws", "upload")),
    *(f"entry_point.{name}" for name in ("predict", "serve", "optimize", "check_dataset")),
    *(f"entry_point.{name}" for name in ("show_batch", "sweep", "compare", "weights")),
]


SETTINGS = {
    **dict.fromkeys(("launch.local", "entry_point.sweep"), ("data.root=", "trainer.epochs=5 ")),
    "entry_point.predict": ("input=null", "csv=false"),
    "entry_point.serve": ("serve.max_batch=",),
    "entry_point.optimize": ("source=", "quality=95 "),
    "entry_point.check_dataset": ("root=(required)",),
    "entry_point.show_batch": ("data.image_size=",),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_of_a_program_prints_its_usage_and_settings(program: str, tmp_path: Path) -> None:
    log, errors = tmp_path / "log", tmp_path / "errors"
    done = forkserver.start(["-m", program, "--help"], log, errors=errors)
    told, problems = done.communicate(timeout=60)
    assert done.returncode == 0, problems
    assert f"python -m {program}" in told
    for key in SETTINGS.get(program, ()):
        (line,) = (each for each in told.splitlines() if each.startswith(f"  {key}"))
        assert len(line) <= 100 and line[37:].strip()


@pytest.mark.parametrize("command", [[], *([name] for name in sagemaker.COMMANDS)])
def test_help_prints_the_usage(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        sagemaker.main([*command, "--help"])
    told = capsys.readouterr()
    assert ended.value.code == 0 and not told.err
    assert "usage: python -m launch.sagemaker" in told.out
    assert all(f"\n{name} " in told.out for name in sagemaker.COMMANDS)
