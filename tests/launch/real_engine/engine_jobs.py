"""One-host jobs started as SageMaker does, and launcher processes, for tests to interrupt."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from launch.engine import Engine
from tests.platform_files import write_input_config

ROOT = Path(__file__).resolve().parents[3]
PER_CLASS = {"train": 6, "val": 2}
"""Photographs of each class."""
# The smallest possible training: the tests are about everything around it.
OVERRIDES = (
    "data=folder",
    "data.image_size=32",
    "data.resize=36",
    "model.name=shufflenet_v2_x0_5",
    "trainer.batch_size=16",
    "trainer.epochs=2",
    "trainer.log_every_steps=2",
    "trainer.report=false",
)
ENDLESS = ("trainer.epochs=100000",)
WRITTEN = ("model", "output", "checkpoints")
HOSTS = ("algo-1", "algo-2")
# Marks the networks of these tests.
LABEL = "managed-training-template.job"
# Long enough for a busy machine.
PATIENCE_SECONDS = 600.0
STEP_LINE = re.compile(r"\bepoch=(\d+) step=(\d+) loss=")
READY = re.compile(r"is ready on port")
START_LINE = re.compile(r"\bstart +epoch (\d+), step (\d+)")


class Job:
    """Containers that use one ``/opt/ml``, started one after another."""

    def __init__(self, engine: Engine, folder: Path, photos: Path) -> None:
        self.engine, self.folder, self.photos = engine, folder, photos
        self.containers: list[str] = []
        self.networks: list[str] = []
        self.owner = os.getuid()
        """Whose the folder and the platform's files in it are."""

    def start(
        self,
        image: str,
        *options: str,
        overrides: Sequence[str] = (),
        command: Sequence[str] = ("train",),
    ) -> str:
        """Start ``image train`` in the background, as the only host; returns the container."""
        write_input_config(self.folder, [*OVERRIDES, *overrides], channels=["training"])
        for path in (self.folder / "input" / "config").iterdir():
            os.chown(path, self.owner, self.owner)
        container = self.engine.call(
            "run",
            "--detach",
            "--hostname=algo-1",
            "--network=none",
            "--add-host=algo-1:127.0.0.1",
            f"--volume={self.folder}/input:/opt/ml/input:ro",
            f"--volume={self.photos}:/opt/ml/input/data/training:ro",
            *(f"--volume={self.folder}/{part}:/opt/ml/{part}" for part in WRITTEN),
            *options,
            image,
            *command,
        )
        self.containers.append(container)
        return container

    def start_two(self, image: str, *overrides: str) -> list[str]:
        """Start ``image train`` on two hosts that reach only each other; returns the containers.

        The second host's folder is ``hosts/algo-2``. Both have the same checkpoints, as in S3.
        """
        network = f"{HOSTS[0]}-{os.getpid()}"
        self.engine.call("network", "create", "--internal", f"--label={LABEL}", network)
        self.networks.append(network)
        for host in HOSTS:
            root = self.folder if host == HOSTS[0] else self.folder / "hosts" / host
            write_input_config(
                root, [*OVERRIDES, *overrides], hosts=HOSTS, current=host, channels=["training"]
            )
            own = {part: root / part for part in ("input", "model", "output")}
            places = {**own, "checkpoints": self.folder / "checkpoints"}
            container = self.engine.call(
                "run",
                "--detach",
                f"--label={LABEL}",
                f"--hostname={host}",
                f"--network={network}",
                f"--network-alias={host}",
                *(f"--volume={path}:/opt/ml/{part}" for part, path in places.items()),
                f"--volume={self.photos}:/opt/ml/input/data/training:ro",
                image,
                "train",
            )
            self.containers.append(container)
        return self.containers[-2:]

    def log(self, container: str) -> str:
        """The output of a container so far."""
        done = subprocess.run(
            [*self.engine.command, "logs", container],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.stdout

    def wait(self, container: str) -> int:
        """Wait until a container ends; returns its exit code."""
        command = [*self.engine.command, "wait", container]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        return int(done.stdout)

    def wait_for(self, container: str, pattern: re.Pattern[str], count: int = 1) -> re.Match[str]:
        """Wait for the ``count``-th match in the log; returns it. Fails if the container ends."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            ended = self.state(container) != "running"
            log = self.log(container)
            found = list(pattern.finditer(log))
            if len(found) >= count:
                return found[count - 1]
            assert not ended, f"ended before {pattern.pattern!r}:\n{log}"
            assert time.monotonic() < deadline, f"no {pattern.pattern!r} in:\n{log}"
            time.sleep(0.3)

    def state(self, container: str) -> str:
        return self.engine.call("inspect", "--format", "{{.State.Status}}", container)

    def give_to(self, uid: int) -> None:
        """Make another user the owner, as on a machine where the user is not root."""
        write_input_config(self.folder, [], channels=["training"])
        self.owner = uid
        for path in [self.folder, *self.folder.rglob("*")]:
            os.chown(path, uid, uid)
        for parent in self.folder.parents:
            if parent.stat().st_uid == os.getuid() and parent != Path(parent.anchor):
                parent.chmod(parent.stat().st_mode | 0o055)

    def remove_containers(self) -> None:
        for container in self.containers:
            self.engine.call("rm", "--force", "--volumes", container)
        for network in self.networks:
            self.engine.call("network", "rm", network)


class Launcher:
    """A ``make docker-train`` process, its output in a file."""

    def __init__(
        self, folder: Path, image: str, *arguments: str, name: str, settings: dict[str, str]
    ) -> None:
        self.run_folder = folder / "runs" / name
        self.output = folder / f"{name}.log"
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "launch.docker", "train", f"name={name}"),
                    *OVERRIDES,
                    *arguments,
                ],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), "IMAGE": image, **settings},
                stdout=output,
                stderr=subprocess.STDOUT,
                # A new process group, so that the test can send Ctrl-C to this process only.
                start_new_session=True,
            )

    def container(self) -> str:
        """Name of the job's container."""
        return f"{self.run_folder.name}-{self.process.pid}"

    def text(self) -> str:
        return self.output.read_text()

    def wait(self) -> int:
        return self.process.wait(PATIENCE_SECONDS)

    def wait_for(self, pattern: re.Pattern[str]) -> None:
        """Wait until ``pattern`` is in the output; fails if the launcher ends first."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not pattern.search(self.text()):
            assert self.process.poll() is None, f"ended early:\n{self.text()}"
            assert time.monotonic() < deadline, f"no {pattern.pattern!r} in:\n{self.text()}"
            time.sleep(0.3)


class Launch(Protocol):
    """Starts a launcher and cleans up after the test."""

    def __call__(
        self, image: str, *arguments: str, name: str, settings: dict[str, str]
    ) -> Launcher: ...


def leftovers(engine: Engine, *names: str) -> str:
    """IDs of the containers of launchers with these names that still exist."""
    return engine.call("ps", "--all", "--quiet", *(f"--filter=name=^{name}-" for name in names))


def remove_leftovers(engine: Engine) -> None:
    """Remove what a killed session left in the private engine, whose images are kept."""
    if containers := engine.call("ps", "--all", "--quiet").split():
        engine.call("rm", "--force", "--volumes", *containers)
    if networks := engine.call("network", "ls", "--quiet", f"--filter=label={LABEL}").split():
        engine.call("network", "rm", *networks)


def described(engine: Engine, image: str) -> dict[str, Any]:
    """The engine's description of an image."""
    (found,) = json.loads(engine.call("image", "inspect", image))
    assert isinstance(found, dict)
    return found
