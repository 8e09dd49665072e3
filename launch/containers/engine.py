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
from pathlib import Path
from tempfile import TemporaryDirectory

from launch.request.launch_errors import LaunchError

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
        if any(re.search(pattern, line, re.I) for line in lines):
            return f"{fix} (the engine said: {last})"
    return f"the engine said: {last}"


@dataclass(frozen=True)
class Engine:
    """A command line that speaks Docker's language, and what stands behind it."""

    command: tuple[str, ...]
    is_podman: bool = False
    is_rootless: bool = False

    def call(self, *arguments: str, text_in: str | None = None, holding: Sequence[int] = ()) -> str:
        """Run ``docker ARGUMENTS`` and return its stdout; raises LaunchError.

        Ctrl-C does not reach it, so nothing is left half done. It keeps the file descriptors
        ``holding`` open for as long as it runs, even beyond this process.
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
            raise LaunchError(explain(done.stderr or done.stdout))
        return done.stdout.strip()

    def follow(self, *arguments: str) -> None:
        """Run ``docker ARGUMENTS``, showing what it says as it says it; raises LaunchError."""
        sys.stdout.flush()
        process = subprocess.Popen(
            [*self.command, *arguments],
            # Where stdout is a terminal, the engine draws its progress there itself.
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # An index with a build's attestations in it is no image to SageMaker.
            env={**os.environ, "DOCKER_BUILDKIT": "1", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"},
        )
        assert process.stderr is not None
        tail: list[str] = []
        for line in process.stderr:
            sys.stdout.write(line)
            sys.stdout.flush()
            tail = [*tail[-19:], line]
        if process.wait():
            raise LaunchError(explain("".join(tail)))

    def image(self, reference: str) -> dict[str, object] | None:
        """What the engine knows of an image, or None if it has no such image."""
        try:
            found: list[dict[str, object]] = json.loads(self.call("image", "inspect", reference))
        except LaunchError as error:
            if re.search(r"no such image|image not known|no such object", str(error), re.I):
                return None
            raise
        return found[0]

    def build(self, reference: str, *arguments: str) -> None:
        """``docker build`` in the one format that every registry and SageMaker take."""
        form = "--format=docker" if self.is_podman else "--progress=plain"
        self.follow("build", form, "-t", reference, *arguments)

    def push(self, repository: str, tag: str) -> str:
        """Push ``repository:tag``; returns the digest that the registry has it under."""
        reference = f"{repository}:{tag}"
        if self.is_podman:
            # Podman's own list of digests names the image as it is here, not yet compressed.
            with TemporaryDirectory() as folder:
                file = Path(folder, "digest")
                self.follow("push", f"--digestfile={file}", *_plain_http(repository), reference)
                return file.read_text().strip()
        self.follow("push", reference)
        digests = (self.image(reference) or {}).get("RepoDigests")
        for uri in digests if isinstance(digests, list) else []:
            if str(uri).startswith(f"{repository}@"):
                return str(uri).removeprefix(f"{repository}@")
        raise LaunchError(f"the registry gave no digest for {reference}: push again")


def _plain_http(repository: str) -> list[str]:
    """Podman insists on TLS even on this machine's own address, where Docker does not."""
    host = repository.split("/")[0].rsplit(":", 1)[0]
    return ["--tls-verify=false"] if host in ("localhost", "127.0.0.1", "[::1]") else []


def identify(command: Sequence[str]) -> Engine:
    """What answers to this command, whatever its name is; raises LaunchError if nothing does."""
    # `version` fails where no daemon answers, which `info` does not in every release.
    Engine(tuple(command)).call("version")
    facts = json.loads(Engine(tuple(command)).call("info", "--format", "{{json .}}"))
    if "host" in facts:
        rootless = bool(facts["host"].get("security", {}).get("rootless"))
        return Engine(tuple(command), is_podman=True, is_rootless=rootless)
    options = facts.get("SecurityOptions") or []
    return Engine(tuple(command), is_rootless=any("name=rootless" in o for o in options))


def find_engine() -> Engine:
    """``$ENGINE``, else docker, else podman, if it is running; raises LaunchError."""
    chosen = shlex.split(os.environ.get("ENGINE", ""))
    candidates: list[Sequence[str]] = [chosen] if chosen else [["docker"], ["podman"]]
    refusals = []
    for command in candidates:
        if shutil.which(command[0]):
            try:
                return identify(command)
            except LaunchError as error:
                refusals.append(error)
    if refusals:
        raise refusals[0]
    if chosen:
        raise LaunchError(f"ENGINE={chosen[0]}: no such command; name docker or podman")
    raise LaunchError(
        "no container engine here: install Docker (Debian and Ubuntu: sudo apt-get install "
        "docker.io) or podman"
    )
