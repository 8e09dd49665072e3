"""Finding an engine, and explaining its errors in one line."""

import os

import pytest

from launch.command_line import LaunchError
from launch.containers.engine import Engine, explain_failure, find_engine
from tests.launch.containers.conftest import FakeEngine

PODMAN = """case $1 in info) echo '{{"host": {{"security": {{"rootless": {}}}}}}}';; esac"""
# Error texts of real engines, and part of the fix that the user needs.
ERRORS = [
    (
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon "
        "running?",
        "systemctl start docker",
    ),
    (
        "Got permission denied while trying to connect to the Docker daemon socket at "
        "unix:///var/run/docker.sock: Get http://%2Fvar%2Frun%2Fdocker.sock/v1.24/version: dial "
        "unix /var/run/docker.sock: connect: permission denied",
        "usermod -aG docker",
    ),
    (
        "permission denied while trying to connect to the docker API at unix:///var/run/docker.sock",
        "usermod -aG docker",
    ),
    (
        "Cannot connect to Podman. Please verify your connection to the Linux system",
        "installed but not running",
    ),
    (
        "ERROR: BuildKit is enabled but the buildx component is missing or broken.\n"
        "       Install the buildx component to build images with BuildKit:\n"
        "       https://docs.docker.com/go/buildx/",
        "docker-buildx",
    ),
    (
        "failed to copy files: write /var/lib/docker/tmp/x: no space left on device",
        "docker system prune",
    ),
    (
        "denied: Your authorization token has expired. Reauthenticate and try again.",
        "docker login",
    ),
    ("no basic auth credentials", "docker login"),
    ("unauthorized: authentication required", "docker login"),
    ("denied: requested access to the resource is denied", "docker login"),
    (
        'Get "https://10.0.0.2:5000/v2/": http: server gave HTTP response to HTTPS client',
        "insecure-registries",
    ),
    (
        "pull access denied for nope, repository does not exist or may require authorization: "
        "server message: insufficient_scope: authorization failed",
        "BASE_IMAGE",
    ),
    ("docker.io/library/debian:nope: not found: manifest unknown", "BASE_IMAGE"),
    (
        "ERROR: failed to solve: localhost:1/none: failed to resolve source metadata for "
        "localhost:1/none: dial tcp 127.0.0.1:1: connect: connection refused",
        "BASE_IMAGE",
    ),
    ('Get "http://localhost:1/v2/": dial tcp [::1]:1: connect: connection refused', "REGISTRY"),
    (
        'could not select device driver "" with capabilities: [[gpu]]',
        "nvidia-container-toolkit",
    ),
]


@pytest.mark.parametrize(("text", "fix"), ERRORS)
def test_an_engine_error_becomes_one_line_with_the_fix(text: str, fix: str) -> None:
    line = explain_failure(text)
    assert fix in line
    assert "\n" not in line


def test_an_unknown_engine_error_is_quoted() -> None:
    assert (
        explain_failure("one\nError: the moon is full\n") == "engine error: Error: the moon is full"
    )
    assert "no reason" in explain_failure("")


def test_a_missing_engine_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path_factory.mktemp("empty")))
    with pytest.raises(LaunchError, match=r"install Docker .*docker\.io.* or podman"):
        find_engine()


def test_a_misspelled_engine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE", "dcoker")
    with pytest.raises(LaunchError, match="ENGINE=dcoker: no such command"):
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


def test_podman_is_used_if_docker_is_not_running(
    fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_engine("echo Cannot connect to the Docker daemon >&2; exit 1")
    calls = fake_engine(PODMAN.format("false"), name="podman")
    monkeypatch.delenv("ENGINE")
    monkeypatch.setenv("PATH", f"{calls.parent / 'bin'}")
    assert find_engine().command == ("podman",)


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


def test_a_pattern_never_matches_across_lines() -> None:
    text = "#5 connecting to the mirror\nERROR: open /cache/x: permission denied\n"
    assert explain_failure(text) == "engine error: ERROR: open /cache/x: permission denied"


def test_an_engine_that_is_not_running_fails_before_any_work(fake_engine: FakeEngine) -> None:
    fake_engine("echo Cannot connect to the Docker daemon >&2; exit 1")
    with pytest.raises(LaunchError, match="not running"):
        find_engine()


def test_a_missing_image_is_none_and_no_error(fake_engine: FakeEngine) -> None:
    fake_engine("echo '[]'; echo 'Error: No such image: x:y' >&2; exit 1")
    assert find_engine_quietly().image("x:y") is None


def find_engine_quietly() -> Engine:
    """The fake engine, without the ``version`` check, which it would fail."""
    return Engine((os.environ["ENGINE"],))


def test_a_build_disables_attestations(
    fake_engine: FakeEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    fake_engine("echo attestations $BUILDX_NO_DEFAULT_ATTESTATIONS")
    find_engine_quietly().build("x:y", ".")
    assert "attestations 1" in capfd.readouterr().out


def test_podman_builds_in_docker_format_and_reports_the_pushed_digest(
    fake_engine: FakeEngine,
) -> None:
    calls = fake_engine(
        """case $1 in push) for a; do case $a in --digestfile=*) printf sha256:7 >${a#*=};; esac
        done;; esac"""
    )
    engine = Engine((os.environ["ENGINE"],), is_podman=True)
    engine.build("x:y", ".")
    assert "build --format=docker -t x:y ." in calls.read_text()
    assert engine.push("localhost:5000/x", "y") == "sha256:7"
    assert "--tls-verify=false" in calls.read_text()
    assert engine.push("example.com/x", "y") == "sha256:7"
    assert calls.read_text().count("--tls-verify=false") == 1


def test_a_failed_build_is_explained_by_its_last_error(
    fake_engine: FakeEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    fake_engine("echo step 1; echo 'ERROR: write /x: no space left on device' >&2; exit 1")
    with pytest.raises(LaunchError, match="docker system prune"):
        find_engine_quietly().follow("build", ".")
    assert "step 1" in capfd.readouterr().out
