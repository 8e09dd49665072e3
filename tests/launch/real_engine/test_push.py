"""Pushing to a local registry and pulling back."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.engine import Engine
from tests.launch.real_engine.engine_jobs import ROOT, described
from tests.launch.real_engine.private_engine import find_program


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """The address of a local registry, ``localhost:PORT``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = tmp_path / "registry.yml"
    config.write_text(
        "version: 0.1\n"
        f"storage: {{filesystem: {{rootdirectory: {tmp_path}/registry}}}}\n"
        f'http: {{addr: "127.0.0.1:{port}"}}\n'
    )
    program = find_program("docker-registry")
    assert program
    with (tmp_path / "registry.log").open("w") as log:
        process = subprocess.Popen([program, "serve", str(config)], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 30
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        yield f"localhost:{port}"
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A separate repository with the launcher's code, everything committed."""
    folder = tmp_path / "checkout"
    for package in ("launch", "entry_point"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    (folder / ".gitignore").write_text("__pycache__\n")
    git = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@localhost"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "all"], check=True)
    return folder


def push(checkout: Path, registry: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "launch.image", "push"],
        cwd=checkout,
        env={**os.environ, "IMAGE": "container-test-push", "REGISTRY": registry},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def small_image(engine: Engine, checkout: Path, tmp_path: Path) -> Iterator[str]:
    """A small image under the name of the checkout's image, so that pushing is quick."""
    head = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "--short=12", "HEAD"],
        capture_output=True,
        text=True,
    )
    reference = f"container-test-push:cpu-{head.stdout.strip()}"
    archive = tmp_path / "small.tar"
    subprocess.run(["tar", "-cf", str(archive), "-C", str(checkout), "launch"], check=True)
    engine.call("import", str(archive), reference)
    yield reference
    if found := engine.call("image", "ls", "--quiet", reference):
        engine.call("rmi", "--force", found)


def test_a_pushed_image_can_be_pulled_by_the_printed_name(
    engine: Engine, registry: str, checkout: Path, small_image: str
) -> None:
    identity = described(engine, small_image)["Id"]
    push(checkout, registry)
    done = push(checkout, registry)  # a second time, which changes nothing
    assert done.returncode == 0, done.stderr
    match = re.search(rf"target\.image=({registry}/{small_image})\n", done.stdout)
    assert match, done.stdout
    engine.call("rmi", "--force", str(identity))
    assert not engine.call("image", "ls", "--quiet", small_image)
    engine.call("pull", match[1])
    assert described(engine, match[1])["Id"] == identity
    engine.call("rmi", "--force", str(identity))
