"""Setup installs what is missing and leaves the rest alone."""

import subprocess
from pathlib import Path

import pytest

from entry_point.config.retired import RETIRED
from entry_point.job.program import UserError
from launch import environment, image

ROOT = Path(__file__).resolve().parents[2]


def command(path: Path, name: str, script: str) -> None:
    """Put an executable shell script called ``name`` into the folder ``path``."""
    target = path / name
    target.write_text(f"#!/bin/sh\n{script}\n")
    target.chmod(0o755)


def test_a_changed_pin_makes_the_environment_outdated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "requirements").mkdir()
    for name in ("torch.txt", "job.txt"):
        (tmp_path / "requirements" / name).write_text("numpy==2.2.6\n")
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    before = environment.fingerprint(environment.pins("job"))
    (tmp_path / "requirements" / "job.txt").write_text("numpy==2.2.5\n")
    assert environment.fingerprint(environment.pins("job")) != before


def test_an_up_to_date_environment_starts_no_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".job-installed").write_text(environment.fingerprint(environment.pins("job")))

    def unexpected(*arguments: object, **_: object) -> None:
        raise AssertionError(f"started {arguments}")

    monkeypatch.setattr(subprocess, "run", unexpected)
    environment.ensure_environment(tmp_path, "job")


def test_an_installation_that_failed_is_repeated(tmp_path: Path) -> None:
    venv = tmp_path / ".venv"
    (venv / "bin").mkdir(parents=True)
    command(venv / "bin", "pip", "exit 1")
    for _ in range(2):
        with pytest.raises(environment.SetupError, match=r"pip.*requirements/launch\.txt"):
            environment.ensure_environment(venv, "launch")
    assert not list(venv.glob(".*-installed"))


def test_an_unknown_extra_is_an_error_that_lists_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert environment.main(["gpu"]) == 1
    assert "extras=gpu: must be one or more of job, dev," in capsys.readouterr().err


def test_a_retired_extra_is_answered_with_what_to_use(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RETIRED, "EXTRAS=gone", "this")
    assert environment.main(["job", "gone"]) == 1
    assert capsys.readouterr().err == "setup: extras=gone: retired: use this\n"
    monkeypatch.setenv("EXTRAS", "timm gone")
    with pytest.raises(UserError, match="EXTRAS=gone: retired: use this"):
        image.build_arguments("sha256:0")


@pytest.fixture
def pip_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree without packages of the user's, and a pip that writes its arguments to a file."""
    for name in ("requirements/torch.txt", "requirements/job.txt", environment.OWN_REQUIREMENTS):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("# nothing yet\n")
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    command(tmp_path / ".venv" / "bin", "pip", f'echo "$*" >> {tmp_path}/calls')
    return tmp_path / "calls"


def test_packages_of_the_users_code_come_with_the_job_within_its_pins(
    tmp_path: Path, pip_calls: Path
) -> None:
    own = tmp_path / environment.OWN_REQUIREMENTS
    environment.ensure_environment(tmp_path / ".venv", "job")
    assert len(pip_calls.read_text().splitlines()) == 1
    own.write_text("einops  # reshapes\n")
    for _ in range(2):
        environment.ensure_environment(tmp_path / ".venv", "job")
    (_, call) = pip_calls.read_text().splitlines()
    assert call.endswith(
        f"-c {tmp_path}/requirements/torch.txt -c {tmp_path}/requirements/job.txt -r {own}"
    )


def test_packages_of_the_users_code_that_do_not_fit_are_named(
    tmp_path: Path, pip_calls: Path
) -> None:
    environment.ensure_environment(tmp_path / ".venv", "job")
    (tmp_path / environment.OWN_REQUIREMENTS).write_text("numpy==1.0\n")
    command(tmp_path / ".venv" / "bin", "pip", "exit 1")
    reason = r"pip could not install project/requirements\.in, .*requirements/job\.txt"
    with pytest.raises(environment.SetupError, match=reason):
        environment.ensure_environment(tmp_path / ".venv", "job")
    assert pip_calls.is_file() and (tmp_path / ".venv").is_dir()
