"""The container engine of this machine, through Docker's command line."""

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass

from entry_point.job.program import UserError

# Variables for the image's content, name and registry; not BUILD_OPTIONS, which may have secrets.
VARIABLES = ("DEVICE", "BASE_IMAGE", "PREBUILD", "EXTRAS", "IMAGE", "REGISTRY", "ENGINE")


@dataclass(frozen=True)
class Engine:
    """A command with Docker's command line, such as ``docker`` or ``sudo docker``."""

    command: tuple[str, ...]

    def call(self, *arguments: str, text_in: str | None = None) -> str:
        """Run ``docker ARGUMENTS``; returns its stdout. Raises UserError with its last line."""
        done = subprocess.run(
            [*self.command, *arguments], input=text_in, capture_output=True, text=True
        )
        if done.returncode:
            reason = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
            raise UserError(f"{shlex.join(self.command)}: {reason}")
        return done.stdout.strip()

    def show(self, *arguments: str) -> bool:
        """Run ``docker ARGUMENTS`` with its output on stdout; returns whether it succeeded."""
        sys.stdout.flush()
        return not subprocess.run([*self.command, *arguments], stderr=subprocess.STDOUT).returncode

    def require_image(self, reference: str) -> None:
        """Raise UserError unless the engine has this image."""
        if not self.call("image", "ls", "--quiet", reference):
            raise UserError(f"there is no image {reference}: run `{make_command('image')}` first")


def make_command(targets: str, **others: str) -> str:
    """Returns `make TARGETS` with the variables that were given, or others in their place."""
    given = {name: others.get(name) or os.environ.get(name) for name in VARIABLES}
    words = [f"{name}={shlex.quote(value)}" for name, value in given.items() if value]
    return " ".join(["make", targets, *words])


def find_engine() -> Engine:
    """Returns the engine that ``$ENGINE`` names, by default docker. Raises UserError."""
    command = shlex.split(os.environ.get("ENGINE") or "docker")
    if shutil.which(command[0]) is None:
        raise UserError(f"ENGINE={command[0]}: no such command; install Docker, or set ENGINE")
    return Engine(tuple(command))
