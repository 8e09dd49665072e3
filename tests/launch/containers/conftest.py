"""A fake engine: these tests run no container."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from launch import docker, local

FakeEngine = Callable[..., Path]
IMAGE = "job:1"
# An engine that has the image and whose containers print nothing and exit with 0.
IDLE = """
    case $1 in
        image) echo '[{"Id": "x", "Config": {}}]';;
        run) exit 0;;
    esac
"""


@pytest.fixture(autouse=True)
def settings_are_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore settings that make exports."""
    for name in (
        *("IMAGE", "DEVICE", "BASE_IMAGE", "PREBUILD", "EXTRAS", "BUILD_OPTIONS"),
        *("REGISTRY", "ENGINE", "HOSTS", "NETWORK", "GPUS", "SHM_SIZE", "PORT"),
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def fake_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """Put a shell script on the PATH as ``docker``; returns the file that logs its arguments.

    It looks like Docker running as root, unless the script answers ``info`` itself.
    """

    def make(script: str, name: str = "docker") -> Path:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        calls = tmp_path / "calls"
        program = folder / name
        answer = "" if "info)" in script else "[ $1 = info ] && { echo '{}'; exit; }"
        program.write_text(f'#!/bin/sh\necho "$*" >>{calls}\n{answer}\n{script}\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        monkeypatch.setenv("ENGINE", str(program))
        return calls

    return make


@pytest.fixture
def start_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder to start jobs in, on a machine without GPUs."""
    monkeypatch.setattr(local, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(docker, "RUNS", tmp_path / "runs")
    monkeypatch.setenv("IMAGE", IMAGE)
    monkeypatch.setenv("GPUS", "0")
    return tmp_path
