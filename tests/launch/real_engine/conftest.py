"""Fixtures of the tests that need a container engine, which ``make test ONLY=container`` runs.

Engine, base image and the image with and without the compiled operator are created once per
session. A plain ``pytest`` collects nothing here.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launch.engine import Engine
from tests.launch.real_engine.engine_jobs import (
    PER_CLASS,
    ROOT,
    Job,
    Launch,
    Launcher,
    remove_leftovers,
)
from tests.launch.real_engine.private_engine import (
    MissingPart,
    docker_command,
    ensure_packages,
    running_engine,
)
from tests.launch.real_engine.stand_in_base import ensure_base
from tests.photographs import write_photo_folder

IS_ENABLED = os.environ.get("TEST_CONTAINER") == "1"
collect_ignore_glob = [] if IS_ENABLED else ["test_*.py"]
# The first test waits until the base image is built.
TIMEOUT_SECONDS = 1800


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))


@pytest.fixture(scope="session")
def tell(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Print progress on the terminal."""
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")

    def write(text: str) -> None:
        if reporter:
            reporter.ensure_newline()
            reporter.write_line(text)

    return write


@pytest.fixture(scope="session")
def engine(tell: Callable[[str], None]) -> Iterator[Engine]:
    """A running engine, which launchers started in this session also use."""
    with pytest.MonkeyPatch.context() as patch:
        try:
            ensure_packages()
            docker = docker_command()
            with running_engine(docker) as host:
                if host:
                    patch.setenv("DOCKER_HOST", host)
                patch.setenv("ENGINE", docker)
                patch.setenv("DOCKER_BUILDKIT", "1")
                engine = Engine((docker,))
                if host:
                    remove_leftovers(engine)
                tell(f"engine {engine.call('version', '--format', '{{.Server.Version}}')}")
                yield engine
        except MissingPart as error:
            pytest.exit(f"make test ONLY=container: {error}", returncode=1)


@pytest.fixture(scope="session")
def base_image(engine: Engine, tell: Callable[[str], None]) -> str:
    tell("stand-in base: built once in about four minutes, then cached")
    return ensure_base(engine)


def build_image(base: str, reference: str, tree: Path = ROOT, **settings: str) -> str:
    """Run ``make image`` for a tree with ``base``; returns the reference."""
    environment = {
        **os.environ,
        "BASE_IMAGE": base,
        "IMAGE": reference,
        # The private engine has no default network for builds.
        "BUILD_OPTIONS": "--network=host",
        **settings,
    }
    command = [sys.executable, "-m", "launch.image", "build"]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    return reference


@pytest.fixture(scope="session")
def image(engine: Engine, base_image: str) -> Iterator[str]:
    """The image that contains the operator as source only."""
    yield (reference := build_image(base_image, "container-test:plain", PREBUILD="0"))
    engine.call("rmi", "--force", reference)


@pytest.fixture(scope="session")
def prebuilt_image(engine: Engine, base_image: str) -> Iterator[str]:
    """The default image, which also contains the compiled operator."""
    yield (reference := build_image(base_image, "container-test:prebuilt"))
    engine.call("rmi", "--force", reference)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs of eight classes, readable by any user."""
    root = tmp_path_factory.mktemp("photos")
    write_photo_folder(root, **PER_CLASS, shrink=2)
    for path in [root, *root.parents]:
        if path.is_relative_to(tmp_path_factory.getbasetemp().parent):
            path.chmod(0o755)
    return root


@pytest.fixture(scope="session")
def many_photos(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    """So many photos that a job stopped after a few steps is in its first epoch."""
    root = tmp_path_factory.mktemp("many")
    for picture in photos.rglob("*.jpg"):
        split, name, file = picture.relative_to(photos).parts
        (root / split / name).mkdir(parents=True, exist_ok=True)
        for copy in range(100 if split == "train" else 1):
            (root / split / name / f"{copy:03d}-{file}").hardlink_to(picture)
    return root


@pytest.fixture
def job(engine: Engine, tmp_path: Path, photos: Path) -> Iterator[Job]:
    """The ``/opt/ml`` of one host; its containers are removed after the test."""
    job = Job(engine, tmp_path / "ml", photos)
    yield job
    job.remove_containers()


@pytest.fixture(scope="session")
def trained(image: str, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    """``make docker-train`` with the image that compiles, at its end."""
    folder = tmp_path_factory.mktemp("trained")
    launcher = Launcher(folder, image, f"data.root={photos}", name="one", settings={})
    launcher.wait()
    return launcher


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Start ``make docker-train`` processes, and stop them after the test."""
    started: list[Launcher] = []

    def start(image: str, *arguments: str, name: str, settings: dict[str, str]) -> Launcher:
        started.append(Launcher(tmp_path, image, *arguments, name=name, settings=settings))
        return started[-1]

    yield start
    for launcher in started:
        launcher.process.terminate()
        launcher.process.wait()
