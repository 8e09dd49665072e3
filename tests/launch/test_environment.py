"""Setup installs what is missing and leaves the rest alone."""

import errno
import fcntl
import sys
from pathlib import Path
from typing import Any

import pytest

from entry_point.config.retired import RETIRED
from launch import environment
from tests.launch.conftest import Terminal

ROOT = Path(__file__).resolve().parents[2]


def command(path: Path, name: str, script: str) -> None:
    """Put an executable shell script called ``name`` into the folder ``path``."""
    target = path / name
    target.write_text(f"#!/bin/sh\n{script}\n")
    target.chmod(0o755)


@pytest.mark.parametrize(
    ("extras", "line"),
    [
        (["gpu"], "extras=gpu: must be one or more of job, dev,"),
        (["job", "gone"], "extras=gone: retired: use this"),
    ],
)
def test_an_unknown_or_retired_extra_is_one_line(
    extras: list[str], line: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RETIRED, "EXTRAS=gone", "this")
    assert terminal.refusal(environment.main, *extras).startswith(f"setup: {line}")


@pytest.fixture
def pip_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree without packages of the user's, and a pip that writes its arguments to a file."""
    for name in ("requirements/torch.txt", "requirements/job.txt", environment.OWN_REQUIREMENTS):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("# nothing yet\n")
    (tmp_path / "custom_op").symlink_to(ROOT / "custom_op")
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "has_gpu", lambda: True)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    command(tmp_path / ".venv" / "bin", "pip", f'echo "$*" >> {tmp_path}/calls')
    return tmp_path / "calls"


def test_only_what_has_changed_or_failed_is_installed(tmp_path: Path, pip_calls: Path) -> None:
    venv, own = tmp_path / ".venv", tmp_path / environment.OWN_REQUIREMENTS
    for _ in range(2):
        environment.ensure_environment(venv, "job")
    assert len(pip_calls.read_text().splitlines()) == 1
    (tmp_path / "requirements/job.txt").write_text("numpy==2.2.5\n")
    own.write_text("einops  # reshapes\n")
    for _ in range(2):
        environment.ensure_environment(venv, "job")
    (_, job, project) = pip_calls.read_text().splitlines()
    pins = [f"{tmp_path}/requirements/{name}.txt" for name in ("torch", "job")]
    assert job.endswith(f"-r {pins[0]} -r {pins[1]}")
    assert project.endswith(f"-c {pins[0]} -c {pins[1]} -r {own}")
    own.write_text("numpy==1.0\n")
    command(venv / "bin", "pip", "exit 1")
    reason = r"pip could not install project/requirements\.in, .*requirements/job\.txt"
    for _ in range(2):
        with pytest.raises(environment.SetupError, match=reason):
            environment.ensure_environment(venv, "job")


def test_a_new_environment_gets_the_newest_pip_before_anything_else(
    tmp_path: Path, pip_calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = tmp_path / ".venv" / "bin" / "pip"
    brought = pip.rename(tmp_path / "pip")
    command(tmp_path, "python", f"mkdir -p {pip.parent}; cp {brought} {pip}")  # -m venv
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    environment.ensure_environment(tmp_path / ".venv", "job")
    newer, packages = pip_calls.read_text().splitlines()
    assert newer.endswith("--upgrade pip") and "-r" in packages.split()


def test_a_complete_environment_is_used_where_nothing_can_be_written(
    tmp_path: Path, pip_calls: Path
) -> None:
    environment.ensure_environment(tmp_path / ".venv", "job")
    (tmp_path / ".setup.lock").mkdir()  # root may write everywhere
    assert environment.main(["job"]) == 0
    assert len(pip_calls.read_text().splitlines()) == 1


def test_what_setup_cannot_write_is_one_line(
    tmp_path: Path, pip_calls: Path, terminal: Terminal
) -> None:
    stamp = tmp_path / ".venv" / ".job-installed"
    stamp.mkdir()
    line = terminal.refusal(environment.main, "job")
    assert line == f"setup: [Errno {errno.EISDIR}] Is a directory: '{stamp}'"
    assert pip_calls.exists()


def test_setup_works_without_file_locks(pip_calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_file: Any, _operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", failing)
    assert environment.main(["job"]) == 0 and pip_calls.exists()


@pytest.mark.parametrize(
    ("compiler", "words"),
    [("absent", "CXX=absent: no such program"), ("false", "cannot use jpeglib.h")],
)
def test_without_compiler_or_headers_setup_names_the_packages_before_it_installs(
    compiler: str,
    words: str,
    pip_calls: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CXX", compiler)
    assert environment.main(["job"]) == 1
    error = capsys.readouterr().err
    assert words in error and "apt-get install g++" in error and "run make again" in error
    assert not pip_calls.exists()
    monkeypatch.setenv("ARGS", "data.root=photos pipeline=pillow")  # decodes without the operator
    assert environment.main(["job"]) == 0 and pip_calls.exists()


@pytest.mark.parametrize("is_offered", [True, False])
def test_without_a_gpu_torch_is_the_build_for_cpus_if_the_index_has_it(
    is_offered: bool,
    tmp_path: Path,
    pip_calls: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(environment, "has_gpu", lambda: False)
    torch = tmp_path / "requirements" / "torch.txt"
    torch.write_text(
        "filelock==4.2.11\nnvidia-nccl-cu13==2.30.7 ; x\ntorch==2.15.0\ntriton==3.9.0\n"
    )
    pip, there = tmp_path / ".venv" / "bin" / "pip", int(not is_offered)
    script = f'case "$*" in *+cpu*) exit {there};; *-r*) cat "$7" >> {pip_calls};; esac'
    command(pip.parent, "pip", script)
    environment.ensure_environment(tmp_path / ".venv", "job")
    installed, said = pip_calls.read_text(), capfd.readouterr().out
    assert ("nvidia" in installed, "triton" in installed) == (not is_offered, not is_offered)
    assert "filelock==4.2.11" in installed and ("torch==" in installed) is not is_offered
    assert ("PIP_EXTRA_INDEX_URL" in said) is not is_offered and "no GPU is here" in said
