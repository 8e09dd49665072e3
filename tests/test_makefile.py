"""The Makefile: its help, its variables and ONLY values, its choice of Python."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from launch import docker, image

ROOT = Path(__file__).resolve().parent.parent
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))
WITH_ONLY = {"test": "TESTS", "figures": "FIGURES"}
"""Target -> the variable with its ONLY values."""


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    # Without what `make test ARGS=...` passes on.
    passed = ("ARGS", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES")
    own = {name: value for name, value in os.environ.items() if name not in passed}
    return subprocess.run(["make", *arguments], cwd=ROOT, env=own, capture_output=True, text=True)


def only_values(target: str) -> list[str]:
    values = re.search(rf"^{WITH_ONLY[target]} := (.*)$", MAKEFILE, re.MULTILINE)
    assert values is not None
    return values[1].split()


def test_help_lists_every_target_within_80_columns() -> None:
    lines = make("help").stdout.splitlines()
    assert {line.split()[0] for line in lines if line.startswith("  ")} == TARGETS
    assert max(map(len, lines)) <= 80


def test_a_misspelt_target_is_answered_with_where_they_are() -> None:
    done = make("trian")
    assert done.returncode == 2
    assert done.stderr.startswith("make trian: no such target; make help lists them\n")


def test_a_variable_that_nothing_reads_stops_make() -> None:
    done = make("-n", "sagemaker-train", "DRYRUN=1", "CXX=g++")
    assert "CXX DRYRUN: no such variable, must be one of ARGS ONLY" in done.stderr
    assert done.returncode and not done.stdout


def test_every_variable_of_the_container_commands_is_known_to_make() -> None:
    known = MAKEFILE.partition("VARIABLES := ")[2].partition("GIVEN")[0]
    for program in (docker, image):
        read = re.findall("^([A-Z_]{4,})  ", program.__doc__ or "", re.MULTILINE)
        assert read and set(read) <= set(known.replace("\\", " ").split())


def test_every_variable_that_a_document_gives_to_make_is_known_to_it() -> None:
    lines = [
        line.partition("make ")[2]
        for page in [*ROOT.glob("*.md"), *ROOT.glob("[a-z]*/*.md")]
        for line in page.read_text(encoding="utf-8").splitlines()
    ]
    given = {name for line in lines for name in re.findall(r"\b[A-Z][A-Z_]+=", line)}
    assert {"ARGS=", "SINCE="} <= given
    done = make("-n", "help", *sorted(given))
    assert not done.returncode, done.stderr


def test_clean_removes_nothing_if_it_is_asked_for_something_else() -> None:
    done = make("-n", "clean", "ARGS=runs")
    assert "clean takes no ARGS; rm -r runs/NAME removes a run" in done.stderr
    assert done.returncode and not done.stdout
    assert make("-n", "clean").stdout.startswith("rm -rf .venv ")


def test_a_packing_job_needs_no_torch_where_it_is_launched() -> None:
    assert "launch.environment launch\n" in make("-n", "sagemaker-dataset").stdout


@pytest.mark.parametrize("only", ["", *only_values("figures")])
def test_every_only_value_of_figures_runs_benchmarks_that_exist(only: str) -> None:
    done = make("-n", "figures", f"ONLY={only}")
    assert done.returncode == 0, done.stderr
    loop = re.search(r"for module in ([\w. ]+);", done.stdout)
    assert loop is not None
    for module in loop[1].split():
        assert (ROOT / "benchmarks" / f"{module.replace('.', '/')}.py").is_file()


@pytest.mark.parametrize("only", ["", *only_values("test")])
def test_every_only_value_of_test_runs_files_that_exist(only: str) -> None:
    done = make("-n", "test", f"ONLY={only}")
    assert done.returncode == 0, done.stderr
    assert re.search("-m pytest|-m tests.changed|tests/fuzz/", done.stdout)
    for file in re.findall(r"\btests/[\w/.]+", done.stdout):
        assert (ROOT / file).exists()


@pytest.mark.parametrize("target", WITH_ONLY)
@pytest.mark.parametrize("wrong", ["nope", "launch gpu"])
def test_an_unknown_only_value_is_one_line_with_the_allowed_ones(target: str, wrong: str) -> None:
    done = make(target, f"ONLY={wrong}")
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert f"ONLY={wrong}: must be one of {' '.join(only_values(target))}" in line


@pytest.mark.parametrize("target", ["setup", "image", "docker-train"])
def test_without_a_supported_python_make_names_the_supported_ones(target: str) -> None:
    done = make(target, "PYTHON=")
    assert done.returncode != 0
    assert "no Python 3.11 to 3.14 found" in done.stderr


@pytest.mark.parametrize("setting", ["data=folder", "trainer.epochs=1"])
@pytest.mark.parametrize("before", ["", "seed=3"])
def test_a_setting_beside_args_is_refused_with_the_command_to_use(
    setting: str, before: str
) -> None:
    done = make("-n", "local-train", f"ARGS={before}", setting)
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert f'make local-train ARGS="{f"{before} {setting}".strip()}"' in line


@pytest.mark.parametrize("variable", ["args", "dry_run"])
def test_a_variable_in_lower_case_is_no_setting(variable: str) -> None:
    done = make("-n", "sagemaker-train", f"{variable}=1")
    assert done.returncode == 2 and done.stdout == ""
    assert f"{variable}: variables of make are in capitals" in done.stderr


@pytest.mark.parametrize("variable", ["AWS_PROFILE=me", "https_proxy=http://proxy:3128"])
def test_variables_of_the_environment_are_no_settings(variable: str) -> None:
    done = make("-n", "local-train", variable)
    assert done.returncode == 0, done.stderr


def test_python_is_started_alike_whatever_the_environment(tmp_path: Path) -> None:
    python = tmp_path / "python"
    variables = "$PYTHONUTF8,$PYTHONSAFEPATH,$PYTHONDONTWRITEBYTECODE"
    python.write_text(f'#!/bin/sh\necho "{variables}"\n')
    python.chmod(0o755)
    given = {"PYTHONUTF8": "0", "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environment = {**os.environ, "LC_ALL": "en_US", **given}
    command = ["make", "setup", f"PYTHON={python}"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout == "1,,\n"


def test_braces_reach_a_program_as_they_are_typed() -> None:
    flags = re.findall(r"^\.SHELLFLAGS := (.*)$", MAKEFILE, re.MULTILINE)
    command = ["bash", *flags[0].split(), "printf '%s|' a={b:1,c:2} d=[1,2]"]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "a={b:1,c:2}|d=[1,2]|"


@pytest.mark.parametrize("goals", [("push",), ("image", "push"), ("local-train",)])
def test_a_target_without_a_dry_run_is_refused_before_it_acts(goals: tuple[str, ...]) -> None:
    done = make("-n", *goals, "DRY_RUN=1")
    assert done.returncode == 2 and done.stdout == ""
    assert f"DRY_RUN=1: {' '.join(goals)} has no dry run; nothing was done" in done.stderr


@pytest.mark.parametrize("given", ["DRY_RUN=1 setup-aws", "DRY_RUN=1 sagemaker", "DRY_RUN=0 push"])
def test_a_target_with_a_dry_run_takes_it(given: str) -> None:
    done = make("-n", *given.split())
    assert done.returncode == 0, done.stderr
