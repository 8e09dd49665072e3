"""Finding an engine, and its errors as one line."""

import os

import pytest

from entry_point.job.program import UserError
from launch.engine import Engine, find_engine
from tests.launch.containers.conftest import FakeEngine

PODMAN = """case $1 in info) echo '{{"host": {{"security": {{"rootless": {}}}}}}}';; esac"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "Got permission denied while trying to connect to the Docker daemon socket\n",
            "Got permission denied while trying to connect to the Docker daemon socket",
        ),
        (
            "docker: Error response from daemon: no such network.\nSee 'docker run --help'.\n",
            "docker: Error response from daemon: no such network.",
        ),
        ("", "no reason given"),
    ],
)
def test_a_failed_call_is_one_line_with_the_engines_reason(
    fake_engine: FakeEngine, text: str, line: str
) -> None:
    fake_engine(f'printf %s "{text}" >&2; exit 1')
    with pytest.raises(UserError) as caught:
        find_engine_quietly().call("run")
    assert str(caught.value) == f"{os.environ['ENGINE']}: {line}"


def test_a_missing_engine_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path_factory.mktemp("empty")))
    with pytest.raises(UserError, match="no container engine found; install docker or podman"):
        find_engine()


def test_a_misspelled_engine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE", "dcoker")
    with pytest.raises(UserError, match="ENGINE=dcoker: no such command"):
        find_engine()


def test_podman_is_used_without_docker(
    fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = fake_engine(PODMAN.format("false"), name="podman")
    monkeypatch.delenv("ENGINE")
    monkeypatch.setenv("PATH", f"{calls.parent / 'bin'}")
    engine = find_engine()
    assert engine.command == ("podman",)
    assert engine.is_podman


@pytest.mark.parametrize(
    ("script", "is_podman", "is_rootless"),
    [
        ('case $1 in info) echo \'{"SecurityOptions": ["name=seccomp"]}\';; esac', False, False),
        ('case $1 in info) echo \'{"SecurityOptions": ["name=rootless"]}\';; esac', False, True),
        (PODMAN.format("false"), True, False),
        (PODMAN.format("true"), True, True),
    ],
)
def test_an_engine_is_identified_by_its_answer_not_by_its_name(
    fake_engine: FakeEngine, script: str, is_podman: bool, is_rootless: bool
) -> None:
    fake_engine(script)
    engine = find_engine()
    assert (engine.is_podman, engine.is_rootless) == (is_podman, is_rootless)


def test_an_engine_that_is_not_running_fails_before_any_work(fake_engine: FakeEngine) -> None:
    fake_engine("echo Cannot connect to the Docker daemon >&2; exit 1")
    with pytest.raises(
        UserError, match=r"Cannot connect to the Docker daemon \(start the engine, or set ENGINE"
    ):
        find_engine()


def test_a_missing_image_is_none_and_no_error(fake_engine: FakeEngine) -> None:
    fake_engine("echo '[]'; echo 'Error: No such image: x:y' >&2; exit 1")
    assert find_engine_quietly().image("x:y") is None


def find_engine_quietly() -> Engine:
    """The fake engine, without the ``version`` check, which it would fail."""
    return Engine((os.environ["ENGINE"],))
