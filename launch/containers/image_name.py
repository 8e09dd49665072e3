"""The image's name: repository, tag, and the commit that the tag refers to."""

import os
import re
import subprocess
from pathlib import Path

from launch.command_line import LaunchError

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_NAME = "managed-training-template"
DEVICES = ("cpu", "gpu")
PLATFORMS = ("linux/amd64", "linux/arm64")


def git(*arguments: str) -> str:
    """Stdout of a git command in the repository; empty without a repository or without git."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def revision() -> str:
    """The current commit, with ``-dirty`` if files have changed, or ``untracked`` without git."""
    commit = git("rev-parse", "--short=12", "HEAD")
    if not commit:
        return "untracked"
    return f"{commit}-dirty" if git("status", "--porcelain") else commit


def is_committed() -> bool:
    """Whether the tree is exactly a commit."""
    return bool(re.fullmatch("[0-9a-f]+", revision()))


def changed_files() -> str:
    """The first changed files in parentheses; empty if there are none."""
    names = [line.split(maxsplit=1)[1] for line in git("status", "--porcelain").splitlines()]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f" ({', '.join(names[:3])}{more})" if names else ""


def device() -> str:
    """``$DEVICE``, default cpu; raises LaunchError for anything but cpu and gpu."""
    chosen = os.environ.get("DEVICE") or "cpu"
    if chosen not in DEVICES:
        raise LaunchError(f"DEVICE={chosen}: must be one of {', '.join(DEVICES)}")
    return chosen


def platform() -> str | None:
    """``$PLATFORM``, None for the engine's own; raises LaunchError for any but PLATFORMS."""
    chosen = os.environ.get("PLATFORM")
    if chosen and chosen not in PLATFORMS:
        raise LaunchError(f"PLATFORM={chosen}: must be one of {', '.join(PLATFORMS)}")
    return chosen or None


def local_reference() -> str:
    """Name and tag of this tree's image in the local engine."""
    name = os.environ.get("IMAGE") or DEFAULT_NAME
    tagged = ":" in name.rsplit("/", 1)[-1]
    kind = f"{device()}-arm64" if platform() == "linux/arm64" else device()
    return name if tagged else f"{name}:{kind}-{revision()}"


def name_and_tag(reference: str) -> tuple[str, str]:
    """Split a reference; raises LaunchError if it includes a registry or a digest."""
    name, _, tag = reference.rpartition(":")
    host, slash, _ = name.partition("/")
    if "@" in reference or (slash and (re.search("[.:]", host) or host == "localhost")):
        raise LaunchError(
            f"IMAGE={os.environ.get('IMAGE')}: must be a name without a registry, such as mine, "
            "team/mine or mine:1; set REGISTRY=HOST:PORT for the registry (default: ECR)"
        )
    return name, tag
