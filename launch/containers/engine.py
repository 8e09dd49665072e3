"""The container engine on this machine, Docker or podman, and its errors as one line."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from launch.command_line import LaunchError

# (pattern in the engine's error text, what to do); the first match applies.
_FIXES: list[tuple[str, str]] = [
    (
        r"permission denied.*(?:sock|connect)|(?:sock|connect).*permission denied",
        "no permission on the engine's socket: run `sudo usermod -aG docker $USER` and log in "
        "again, or use sudo",
    ),
    (
        r"cannot connect to the docker daemon|is the docker daemon running|"
        r"(?:cannot|unable to) connect to podman|dial unix .*(?:no such file|refused)",
        "the engine is installed but not running: run `sudo systemctl start docker`, start Docker "
        "Desktop, or set DOCKER_HOST to its address",
    ),
    (
        r"buildx component is missing|requires? buildkit|buildkit is not supported",
        "this docker lacks BuildKit: install the plug-in (Debian and Ubuntu: docker-buildx or "
        "docker-buildx-plugin), or set ENGINE to another docker or podman",
    ),
    (
        r"no space left on device",
        "the engine's disk is full: `docker system df` shows what uses it, `docker system prune` "
        "frees it",
    ),
    (
        r"no basic auth credentials|authentication required|unauthorized|"
        r"requested access to the resource is denied(?!.*pull access)|denied: .*(?:token|push)",
        "not logged in to the registry, or not allowed: run `docker login HOST`, for ECR "
        "`aws ecr get-login-password | docker login --username AWS --password-stdin HOST`",
    ),
    (
        r"server gave http response to https client",
        "the registry uses plain HTTP, which engines accept only from localhost: use "
        "localhost:PORT, or add the registry to insecure-registries in the engine's configuration",
    ),
    (
        r"pull access denied|manifest(?: for .*)? (?:unknown|not found)|"
        r"repository .* not found|repository does not exist|failed to resolve source metadata|"
        r"failed to resolve reference",
        "no such base image, or no access to it: check BASE_IMAGE, DEVICE and the network",
    ),
    (
        r"could not select device driver.*gpu|nvidia-container-cli|unresolvable cdi",
        "the engine cannot use the GPU: install nvidia-container-toolkit, run "
        "`sudo nvidia-ctk runtime configure` and restart the engine, or set GPUS=0",
    ),
    (
        r"connection refused|no such host|i/o timeout|no route to host",
        "no answer from that address: check REGISTRY or BASE_IMAGE and the network",
    ),
]


def explain_failure(text: str) -> str:
    """One line for the engine's error text: its last error, and the fix if known."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"error|denied|cannot|failed", line, re.I)]
    last = (errors or lines or ["no reason given"])[-1]
    for pattern, fix in _FIXES:
        if any(re.search(pattern, line, re.I) for line in lines):
            return f"{fix} (engine error: {last})"
    return f"engine error: {last}"


@dataclass(frozen=True)
class Engine:
    """A command with Docker's command line, and the kind of engine behind it."""

    command: tuple[str, ...]
    is_podman: bool = False
    is_rootless: bool = False

    def call(self, *arguments: str, text_in: str | None = None, holding: Sequence[int] = ()) -> str:
        """Run ``docker ARGUMENTS`` and return its stdout; raises LaunchError.

        Ctrl-C does not interrupt it. It keeps the file descriptors ``holding`` open while it runs,
        even if this process ends first.
        """
        done = subprocess.run(
            [*self.command, *arguments],
            input=text_in,
            capture_output=True,
            text=True,
            pass_fds=holding,
            start_new_session=True,
        )
        if done.returncode:
            raise LaunchError(explain_failure(done.stderr or done.stdout))
        return done.stdout.strip()

    def follow(self, *arguments: str) -> None:
        """Run ``docker ARGUMENTS`` and show its output as it arrives; raises LaunchError."""
        sys.stdout.flush()
        process = subprocess.Popen(
            [*self.command, *arguments],
            # On a terminal, the engine draws its progress on stdout directly.
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # SageMaker rejects an image index, which attestations would produce.
            env={**os.environ, "DOCKER_BUILDKIT": "1", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"},
        )
        assert process.stderr is not None
        tail: list[str] = []
        for line in process.stderr:
            sys.stdout.write(line)
            sys.stdout.flush()
            tail = [*tail[-19:], line]
        if process.wait():
            raise LaunchError(explain_failure("".join(tail)))

    def image(self, reference: str) -> dict[str, Any] | None:
        """The engine's description of an image, or None if it does not have the image."""
        try:
            found: list[dict[str, Any]] = json.loads(self.call("image", "inspect", reference))
        except LaunchError as error:
            if re.search(r"no such image|image not known|no such object", str(error), re.I):
                return None
            raise
        return found[0]

    def build(self, reference: str, *arguments: str) -> None:
        """Run ``docker build``, in the format that every registry and SageMaker accept."""
        option = "--format=docker" if self.is_podman else "--progress=plain"
        self.follow("build", option, "-t", reference, *arguments)

    def push(self, repository: str, tag: str) -> str:
        """Push ``repository:tag``; returns its digest in the registry."""
        reference = f"{repository}:{tag}"
        if self.is_podman:
            # Podman lists the digests of the local, uncompressed image.
            with TemporaryDirectory() as folder:
                file = Path(folder, "digest")
                self.follow("push", f"--digestfile={file}", *_plain_http(repository), reference)
                return file.read_text().strip()
        self.follow("push", reference)
        image = self.image(reference) or {}
        for uri in image.get("RepoDigests") or []:
            name, _, digest = str(uri).partition("@")
            if name == repository:
                return digest
        raise LaunchError(f"the registry returned no digest for {reference}: push again")


def _plain_http(repository: str) -> list[str]:
    """Options to allow HTTP on localhost: Docker does by default, podman does not."""
    host = repository.split("/")[0].rsplit(":", 1)[0]
    return ["--tls-verify=false"] if host in ("localhost", "127.0.0.1", "[::1]") else []


def identify(command: Sequence[str]) -> Engine:
    """Find out which engine a command runs; raises LaunchError if none answers."""
    # Without a daemon, `version` fails; `info` does not in every release.
    Engine(tuple(command)).call("version")
    facts = json.loads(Engine(tuple(command)).call("info", "--format", "{{json .}}"))
    if "host" in facts:
        rootless = bool(facts["host"].get("security", {}).get("rootless"))
        return Engine(tuple(command), is_podman=True, is_rootless=rootless)
    options = facts.get("SecurityOptions") or []
    return Engine(tuple(command), is_rootless=any("name=rootless" in o for o in options))


def find_engine() -> Engine:
    """``$ENGINE``, else docker, else podman; raises LaunchError if none is running."""
    chosen = shlex.split(os.environ.get("ENGINE", ""))
    candidates: list[Sequence[str]] = [chosen] if chosen else [["docker"], ["podman"]]
    errors = []
    for command in candidates:
        if shutil.which(command[0]):
            try:
                return identify(command)
            except LaunchError as error:
                errors.append(error)
    if errors:
        raise errors[0]
    if chosen:
        raise LaunchError(
            f"ENGINE={chosen[0]}: no such command; must be docker, podman or a compatible command"
        )
    raise LaunchError(
        "no container engine found: install Docker (Debian and Ubuntu: `sudo apt-get install "
        "docker.io`) or podman"
    )
