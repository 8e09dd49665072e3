"""The container engine on this machine: Docker, or podman, which has the same command line."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from entry_point.job.program import UserError


@dataclass(frozen=True)
class Engine:
    """A command with Docker's command line, and the kind of engine behind it."""

    command: tuple[str, ...]
    is_podman: bool = False
    is_rootless: bool = False

    def call(self, *arguments: str, text_in: str | None = None) -> str:
        """Run ``docker ARGUMENTS`` and return its stdout; raises UserError.

        Ctrl-C does not interrupt it.
        """
        done = subprocess.run(
            [*self.command, *arguments],
            input=text_in,
            capture_output=True,
            text=True,
            start_new_session=True,
        )
        if done.returncode:
            raise UserError(f"{self.command[0]}: {_last_error(done.stderr)}")
        return done.stdout.strip()

    def show(self, *arguments: str) -> bool:
        """Run ``docker ARGUMENTS`` with its output on stdout; returns whether it succeeded."""
        sys.stdout.flush()
        done = subprocess.run(
            [*self.command, *arguments],
            stderr=subprocess.STDOUT,
            # SageMaker rejects an image index, which attestations would produce.
            env={**os.environ, "DOCKER_BUILDKIT": "1", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"},
        )
        return done.returncode == 0

    def image(self, reference: str) -> dict[str, Any] | None:
        """Returns the engine's description of an image, or None if it does not have the image."""
        try:
            found: list[dict[str, Any]] = json.loads(self.call("image", "inspect", reference))
        except UserError:
            return None
        return found[0]


def find_engine() -> Engine:
    """``$ENGINE``, else docker, else podman; raises UserError unless it is there and runs."""
    chosen = shlex.split(os.environ.get("ENGINE", ""))
    candidates = [chosen] if chosen else [["docker"], ["podman"]]
    command = next((each for each in candidates if shutil.which(each[0])), None)
    if command is None:
        wrong = f"ENGINE={chosen[0]}: no such command" if chosen else "no container engine found"
        raise UserError(f"{wrong}; install docker or podman, or set ENGINE to its command")
    engine = Engine(tuple(command))
    try:
        # Without a daemon, `version` fails; `info` does not in every release.
        engine.call("version")
        facts = json.loads(engine.call("info", "--format", "{{json .}}"))
    except UserError as error:
        raise UserError(f"{error} (start the engine, or set ENGINE to another)") from error
    if "host" in facts:
        rootless = bool(facts["host"].get("security", {}).get("rootless"))
        return Engine(engine.command, is_podman=True, is_rootless=rootless)
    options = facts.get("SecurityOptions") or []
    return Engine(engine.command, is_rootless=any("name=rootless" in each for each in options))


def _last_error(text: str) -> str:
    """Returns the line with the reason; advice to read the manual may follow it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"error|denied|cannot|failed", line, re.I)]
    return (errors or lines or ["no reason given"])[-1]
