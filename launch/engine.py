"""The container engine on this machine, Docker or podman, and its errors in one clear line."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass


class ContainerError(Exception):
    """What the engine could not do, and what to do about it."""


# (part of what the engine says, what to do); the first that matches is taken.
_FIXES: list[tuple[str, str]] = [
    (
        r"permission denied.*(?:sock|connect)|(?:sock|connect).*permission denied",
        "no permission on the engine's socket: run `sudo usermod -aG docker $USER` and log in "
        "again, or use sudo",
    ),
    (
        r"cannot connect to the docker daemon|is the docker daemon running|"
        r"(?:cannot|unable to) connect to podman|dial unix .*(?:no such file|refused)",
        "the engine is installed but not running: run `sudo systemctl start docker`, or start "
        "Docker Desktop, or set DOCKER_HOST to where it listens",
    ),
    (
        r"buildx component is missing|requires? buildkit|buildkit is not supported",
        "this docker has no BuildKit: install its plug-in (Debian and Ubuntu: docker-buildx or "
        "docker-buildx-plugin), or set ENGINE to another docker or podman",
    ),
    (
        r"no space left on device",
        "the engine's disk is full: `docker system df` shows by what, `docker system prune` frees",
    ),
    (
        r"no basic auth credentials|authentication required|unauthorized|"
        r"requested access to the resource is denied(?!.*pull access)|denied: .*(?:token|push)",
        "not logged in to the registry, or not allowed: run `docker login HOST`, for ECR "
        "`aws ecr get-login-password | docker login --username AWS --password-stdin HOST`",
    ),
    (
        r"server gave http response to https client",
        "the registry speaks plain HTTP, which engines accept only from localhost: name it "
        "localhost:PORT, or add it to insecure-registries in the engine's configuration",
    ),
    (
        r"pull access denied|manifest(?: for .*)? (?:unknown|not found)|"
        r"repository .* not found|repository does not exist|failed to resolve source metadata|"
        r"failed to resolve reference",
        "no such base image, or no access to it: check BASE_IMAGE and DEVICE, and that this "
        "machine reaches its registry",
    ),
    (
        r"could not select device driver.*gpu|nvidia-container-cli|unresolvable cdi",
        "the engine cannot hand out the GPU: install nvidia-container-toolkit, run "
        "`sudo nvidia-ctk runtime configure` and restart the engine, or set GPUS=0",
    ),
    (
        r"connection refused|no such host|i/o timeout|no route to host",
        "nothing answers at that address: check REGISTRY or BASE_IMAGE and the network",
    ),
]


def explain(words: str) -> str:
    """One line for what an engine wrote to stderr: its own last words, and the fix if known."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"error|denied|cannot|failed", line, re.I)]
    last = (telling or lines or ["it gave no reason"])[-1]
    for pattern, fix in _FIXES:
        if re.search(pattern, words, re.I | re.S if "sock" in pattern else re.I):
            return f"{fix} (the engine said: {last})"
    return f"the engine said: {last}"


@dataclass(frozen=True)
class Engine:
    """A command line that speaks Docker's language."""

    command: tuple[str, ...]

    @property
    def is_podman(self) -> bool:
        return "podman" in self.command[0].rsplit("/", 1)[-1]

    def call(self, *arguments: str, text_in: str | None = None) -> str:
        """Run ``docker ARGUMENTS`` and return its stdout; raises ContainerError."""
        done = subprocess.run(
            [*self.command, *arguments], input=text_in, capture_output=True, text=True
        )
        if done.returncode:
            raise ContainerError(explain(done.stderr or done.stdout))
        return done.stdout.strip()

    def follow(self, *arguments: str) -> None:
        """Run ``docker ARGUMENTS``, showing what it says as it says it; raises ContainerError."""
        environment = {**os.environ, "DOCKER_BUILDKIT": "1"}
        process = subprocess.Popen(
            [*self.command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        assert process.stdout is not None
        tail: list[str] = []
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            tail = [*tail[-19:], line]
        if process.wait():
            raise ContainerError(explain("".join(tail)))

    def image(self, reference: str) -> dict[str, object] | None:
        """What the engine knows of an image, or None if it has no such image."""
        try:
            found: list[dict[str, object]] = json.loads(self.call("image", "inspect", reference))
        except ContainerError as error:
            if re.search(r"no such image|image not known|no such object", str(error), re.I):
                return None
            raise
        return found[0]


def find_engine() -> Engine:
    """``$ENGINE``, else docker, else podman, if it is running; raises ContainerError."""
    chosen = shlex.split(os.environ.get("ENGINE", ""))
    candidates: list[Sequence[str]] = [chosen] if chosen else [["docker"], ["podman"]]
    for command in candidates:
        if shutil.which(command[0]):
            engine = Engine(tuple(command))
            # `version` asks the daemon, which `--version` does not.
            engine.call("version")
            return engine
    if chosen:
        raise ContainerError(f"ENGINE={chosen[0]}: no such command; name docker or podman")
    raise ContainerError(
        "no container engine here: install Docker (Debian and Ubuntu: sudo apt-get install "
        "docker.io) or podman"
    )
