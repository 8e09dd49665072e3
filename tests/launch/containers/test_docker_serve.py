"""How docker-serve sets up its container; the engine is a shell script."""

import os
from pathlib import Path

import pytest

from launch import docker_serve
from tests.launch.containers.conftest import IDLE, IMAGE, FakeEngine


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "my model").mkdir()
    return tmp_path / "my model"


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch, start_folder: Path) -> None:
    assert start_folder
    monkeypatch.delenv("PORT", raising=False)


def created(calls: Path) -> str:
    (line,) = [each for each in calls.read_text().splitlines() if each.startswith("create")]
    return line


def test_the_server_gets_the_model_read_only_and_a_port_of_this_machine_only(
    fake_engine: FakeEngine, model: Path
) -> None:
    calls = fake_engine(IDLE)
    assert docker_serve.main([f"model_dir={model}", "serve.max_batch=4"]) == 0
    create = created(calls)
    for option in (
        "--publish=127.0.0.1:8080:8080",
        "--env=SAGEMAKER_BIND_TO_PORT=8080",
        f"--mount=type=bind,source={model},target=/opt/ml/model,readonly",
        "--read-only",
        "--stop-timeout=30",
        f"--user={os.getuid()}:{os.getgid()}",
    ):
        assert option in create
    assert create.endswith(f"{IMAGE} serve serve.max_batch=4")


def test_the_hosts_network_needs_no_published_port(
    fake_engine: FakeEngine, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = fake_engine(IDLE)
    monkeypatch.setenv("NETWORK", "host")
    monkeypatch.setenv("PORT", "9000")
    assert docker_serve.main([f"model_dir={model}"]) == 0
    assert "--network=host --env=SAGEMAKER_BIND_TO_PORT=9000" in created(calls)


@pytest.mark.parametrize(
    ("settings", "arguments", "words"),
    [
        ({"PORT": "http"}, [], "PORT=http: must be a number from 1 to 65535"),
        ({"NETWORK": "none"}, [], "NETWORK=none: must be host or unset"),
        ({}, ["model_dir=/no/such"], "model_dir=/no/such: there is no such folder"),
    ],
)
def test_a_wrong_setting_is_one_line(
    settings: dict[str, str],
    arguments: list[str],
    words: str,
    model: Path,
    fake_engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls = fake_engine(IDLE)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert docker_serve.main([f"model_dir={model}", *arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"docker-serve: {words}") and error.count("\n") == 1
    assert not calls.exists()


def test_a_missing_image_says_how_to_build_it(
    fake_engine: FakeEngine, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_engine("case $1 in image) echo 'Error: No such image: job:1' >&2; exit 1;; esac")
    assert docker_serve.main([f"model_dir={model}"]) == 1
    assert capsys.readouterr().err == (
        "docker-serve: there is no image job:1: run `make image` first\n"
    )
