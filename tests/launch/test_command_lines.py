"""A misspelt flag, command or variable is named before anything happens."""

import subprocess
from pathlib import Path

import pytest

from launch import deploy, docker, make_variables
from launch.command_line import LaunchError
from launch.sagemaker import __main__ as sagemaker

ROOT = Path(__file__).resolve().parents[2]


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", "-n", *arguments], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("given", "meant"), [("DRYRUN", "DRY_RUN"), ("HOST", "HOSTS"), ("extra", "EXTRAS")]
)
def test_a_misspelt_variable_stops_make(given: str, meant: str) -> None:
    done = make("sagemaker-train", f"{given}=1")
    assert f"{given}: no such variable; did you mean {meant}?" in done.stderr
    assert done.returncode and not done.stdout


def test_variables_for_the_programs_pass() -> None:
    overrides = "ARGS=data.root='a b' x=1"
    done = make("help", "AWS_PROFILE=me", "HTTPS_PROXY=http://proxy:1", "CXX=g++", overrides)
    assert done.returncode == 0, done.stderr


def test_every_variable_that_make_passes_on_is_known() -> None:
    known = (ROOT / "Makefile").read_text().partition("VARIABLES := ")[2].partition("GIVEN")[0]
    names = known.replace("\\", " ").split()
    assert set(docker.VARIABLES) <= set(names)
    assert all(make_variables.misspelt(name, [name]) for name in names)


def test_a_dry_run_of_packing_installs_no_torch() -> None:
    assert "environment.py  launch\n" in make("sagemaker-dataset", "DRY_RUN=1").stdout
    assert "environment.py job launch\n" in make("sagemaker-dataset").stdout


@pytest.mark.parametrize(
    ("program", "arguments", "line"),
    [
        (sagemaker, ["train", "--wiat", "a=1"], "--wiat: no such flag; must be one of -h, "),
        (sagemaker, ["logs", "x", "--folow"], "did you mean --follow?"),
        (sagemaker, ["trian"], "invalid choice: 'trian' (choose from 'train'"),
        (sagemaker, ["dataset", "--no-wiat", "source=s3://a"], "did you mean --no-wait?"),
        (deploy, ["deploy", "job", "--wiat"], "did you mean --wait?"),
    ],
)
def test_a_misspelt_flag_is_named_in_one_line(
    program: object, arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(arguments)  # type: ignore[attr-defined]
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert line in told and told.count("\n") == 1


@pytest.mark.parametrize("command", [[], *([name] for name in sagemaker.COMMANDS)])
def test_help_prints_the_usage(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        sagemaker.main([*command, "--help"])
    told = capsys.readouterr()
    assert ended.value.code == 0 and not told.err
    assert "usage: python -m launch.sagemaker" in told.out
    assert all(f"\n{name} " in told.out for name in sagemaker.COMMANDS)


@pytest.mark.parametrize(
    ("argument", "line"),
    [
        ("--wait", "--wait: not an override as in key=value"),
        ("first-try", "first-try: not an override"),
        ("HOSTS=2", "HOSTS=2: set it beside ARGS: make docker-train HOSTS=2"),
    ],
)
def test_docker_train_refuses_what_no_job_can_take(argument: str, line: str) -> None:
    with pytest.raises(LaunchError) as caught:
        docker.require_overrides(["trainer.epochs=1", argument])
    assert str(caught.value).startswith(line)
