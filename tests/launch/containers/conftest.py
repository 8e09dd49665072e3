"""A fake engine: these tests run no container."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from launch import docker, local

FakeEngine = Callable[..., Path]
IMAGE = "job:1"
# An engine that has every image, and whose containers print nothing and exit with 0.
IDLE = """
    case $1 in
        image) echo 0123;;
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
    """Put a shell script on the PATH as ``docker``; returns the file that logs its arguments."""

    def make(script: str) -> Path:
        (folder := tmp_path / "engine").mkdir(exist_ok=True)
        calls = tmp_path / "calls"
        program = folder / "docker"
        program.write_text(f'#!/bin/sh\necho "$*" >>{calls}\n{script}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
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
