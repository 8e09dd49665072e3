"""Setup installs or names what is missing and leaves the rest alone."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launch import environment

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534


def command(path: Path, name: str, script: str) -> None:
    """Put an executable shell script called ``name`` into the folder ``path``."""
    target = path / name
    target.write_text(f"#!/bin/sh\n{script}\n")
    target.chmod(0o755)


def set_up(tmp_path: Path, bin_folder: Path) -> subprocess.CompletedProcess[str]:
    """Run setup from a copy of the sources with only ``bin_folder`` on the PATH."""
    copy = tmp_path / "copy"
    (copy / "launch").mkdir(parents=True)
    shutil.copy(ROOT / "launch" / "environment.py", copy / "launch")
    shutil.copytree(ROOT / "requirements", copy / "requirements")
    return subprocess.run(
        [sys.executable, str(copy / "launch" / "environment.py"), "job"],
        env={"PATH": str(bin_folder), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("installer", "expected"),
    [
        (
            "apt-get",
            "install -y --no-install-recommends g++ libjpeg-dev",
        ),
        ("dnf", "sudo dnf install -y gcc-c++ libjpeg-turbo-devel"),
        ("brew", "brew install gcc jpeg-turbo"),
    ],
)
def test_without_privilege_the_error_names_the_exact_command(
    monkeypatch: pytest.MonkeyPatch, bin_folder: Path, installer: str, expected: str
) -> None:
    command(bin_folder, installer, "exit 1")
    monkeypatch.setenv("PATH", str(bin_folder))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    with pytest.raises(environment.SetupError) as error:
        environment.ensure_system_packages()
    assert expected in str(error.value)


def test_on_an_unknown_system_the_error_names_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, bin_folder: Path
) -> None:
    monkeypatch.setenv("PATH", str(bin_folder))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(environment.SetupError, match=r"apt-get, dnf, brew.*g\+\+ libjpeg-dev"):
        environment.ensure_system_packages()


def test_missing_packages_are_installed_and_checked(tmp_path: Path, bin_folder: Path) -> None:
    log = tmp_path / "calls"
    command(bin_folder, "sudo", 'exec "$@"')
    command(bin_folder, "apt-get", f'echo "$@" >> {log}; echo "E: no space left"; exit 100')
    done = set_up(tmp_path, bin_folder)
    assert done.returncode == 1
    assert "install -y --no-install-recommends g++ libjpeg-dev" in log.read_text()
    assert "E: no space left" in done.stdout
    assert "g++ libjpeg-dev still missing; run\n" in done.stderr
    assert not (tmp_path / "copy" / ".venv").exists()


def test_without_sudo_there_is_one_message_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, bin_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command(bin_folder, "apt-get", "exit 1")
    monkeypatch.setenv("PATH", str(bin_folder))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    assert environment.main(["job"]) == 1
    assert "run\n  sudo apt-get" in capsys.readouterr().err


def test_this_machines_compiler_and_headers_are_found() -> None:
    assert environment.missing_packages("apt-get") == []


def test_a_libjpeg_other_than_turbo_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jpeglib.h").write_text("#define JPEG_LIB_VERSION 90\n")
    assert environment.compiles()
    monkeypatch.setenv("CXX", f"c++ -I{tmp_path}")
    assert not environment.compiles()


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
