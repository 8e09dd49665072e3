"""A misspelt flag, command or variable is named before anything happens."""

import subprocess
from pathlib import Path

import pytest

from launch import dataset, deploy, docker, sagemaker
from launch.request.launch_errors import LaunchError

ROOT = Path(__file__).resolve().parents[2]


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", "-n", *arguments], cwd=ROOT, capture_output=True, text=True)


def test_a_variable_that_nothing_reads_stops_make() -> None:
    done = make("sagemaker-train", "DRYRUN=1", "AWS_PROFILE=me")
    assert "AWS_PROFILE DRYRUN: no such variable, must be one of ARGS ONLY" in done.stderr
    assert done.returncode and not done.stdout


def test_settings_beside_args_stop_make_with_the_command_to_use() -> None:
    done = make("local-train", "data=folder", "data.root=a b", "ARGS=name=x")
    assert 'make local-train ARGS="name=x data=folder data.root=a b"' in done.stderr
    assert done.returncode and not done.stdout


def test_every_variable_that_docker_train_reads_is_known_to_make() -> None:
    known = (ROOT / "Makefile").read_text().partition("VARIABLES := ")[2].partition("GIVEN")[0]
    assert set(docker.VARIABLES) <= set(known.replace("\\", " ").split())


def test_a_dry_run_of_packing_installs_no_torch() -> None:
    assert "environment.py  launch\n" in make("sagemaker-dataset", "DRY_RUN=1").stdout
    assert "environment.py job launch\n" in make("sagemaker-dataset").stdout


@pytest.mark.parametrize(
    ("program", "arguments", "line"),
    [
        (sagemaker, ["train", "--wiat", "a=1"], "--wiat: no such flag; must be one of -h, "),
        (sagemaker, ["logs", "x", "--folow"], "did you mean --follow?"),
        (sagemaker, ["trian"], "invalid choice: 'trian' (choose from 'train'"),
        (dataset, ["--no-wiat", "source=s3://a"], "did you mean --no-wait?"),
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
