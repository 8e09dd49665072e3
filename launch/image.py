"""Build the training image and push it.

``python -m launch.image build`` and ``... push``; the Makefile's targets of those names. Settings
come from the environment, where make puts ``make image DEVICE=gpu``:

IMAGE          name of the image, also of its repository, without a registry; ``:TAG`` may follow
DEVICE         ``cpu`` or ``gpu``: which of AWS's images to build on, and part of the tag
BASE_IMAGE     any other base
PREBUILD       1 compiles the operator into the image
EXTRAS         more of requirements/*.in to install: ``dali``
BUILD_OPTIONS  more options for ``docker build``, as for a proxy
REGISTRY       where to push: ``localhost:5000``, ``ghcr.io/me``; without it, this account's ECR
ENGINE         the command to use instead of docker or podman
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from launch.containers.engine import ContainerError, Engine, find_engine

ROOT = Path(__file__).resolve().parent.parent
NAME = "managed-training-template"
DEVICES = ("cpu", "gpu")
# The Dockerfile writes it.
REVISION_LABEL = "org.opencontainers.image.revision"


def git(*arguments: str) -> str:
    """Stdout of a git command in the repository; empty where there is no repository, or no git."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def revision() -> str:
    """The commit that the tree is at, ``-dirty`` if it differs from it, or ``untracked``."""
    commit = git("rev-parse", "--short=12", "HEAD")
    if not commit:
        return "untracked"
    return f"{commit}-dirty" if git("status", "--porcelain") else commit


def device() -> str:
    """``$DEVICE``, cpu if unset; raises ContainerError for what is neither cpu nor gpu."""
    chosen = os.environ.get("DEVICE") or "cpu"
    if chosen not in DEVICES:
        raise ContainerError(f"DEVICE={chosen}: use one of {', '.join(DEVICES)}")
    return chosen


def local_reference() -> str:
    """Name and tag under which the local engine keeps the image of this tree."""
    name = os.environ.get("IMAGE") or NAME
    tagged = ":" in name.rsplit("/", 1)[-1]
    return name if tagged else f"{name}:{device()}-{revision()}"


def version() -> str:
    """The project's version, from pyproject.toml."""
    found = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)
    return found[1] if found else "unknown"


def build_arguments() -> list[str]:
    """``docker build``'s arguments; raises ContainerError for a setting it cannot take."""
    values = {"DEVICE": device(), "VERSION": version(), "REVISION": revision()}
    for name in ("BASE_IMAGE", "EXTRAS"):
        if value := os.environ.get(name):
            values[name] = value
    prebuild = os.environ.get("PREBUILD") or "0"
    if prebuild not in ("0", "1"):
        raise ContainerError(f"PREBUILD={prebuild}: 1 compiles the operator into the image, 0 not")
    values["PREBUILD"] = prebuild
    settings = [f"--build-arg={name}={value}" for name, value in values.items()]
    return [*settings, *shlex.split(os.environ.get("BUILD_OPTIONS", ""))]


def megabytes(size: object) -> str:
    """Bytes as the engines write them, in millions."""
    return f"{int(str(size)) / 1e6:,.0f} MB"


def build() -> None:
    """Build the image of the tree as it is and say what came out."""
    engine = find_engine()
    reference = local_reference()
    engine.build(reference, *build_arguments(), str(ROOT))
    image = engine.image(reference)
    if image is None:
        raise ContainerError(f"{reference} was built, but {engine.command[0]} does not list it")
    say(f"{reference}  {megabytes(image['Size'])}  {image['Id']}")
    say(f"`make docker-train` trains in it, `make push` publishes it{unpushable()}")


def unpushable() -> str:
    """Why ``make push`` would refuse this tree, as the end of a sentence."""
    return "" if re.fullmatch("[0-9a-f]+", revision()) else ", once everything is committed"


def changed_files() -> str:
    """The first few files that differ from the commit, in brackets; empty without a repository."""
    names = [line.split(maxsplit=1)[1] for line in git("status", "--porcelain").splitlines()]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f" ({', '.join(names[:3])}{more})" if names else ""


def push() -> str:
    """Push the image of this commit and return its digest URI; raises for a dirty tree."""
    if unpushable():
        raise ContainerError(
            f"the tree is {revision().rsplit('-', 1)[-1]}{changed_files()}, so no revision names "
            "this image: commit, run `make image`, then push"
        )
    reference = local_reference()
    name, tag = name_and_tag(reference)
    engine = find_engine()
    check_revision(engine, reference)
    repository = f"{os.environ.get('REGISTRY') or log_in(engine, name)}/{name}"
    engine.call("tag", reference, f"{repository}:{tag}")
    return f"{repository}@{engine.push(repository, tag)}"


def name_and_tag(reference: str) -> tuple[str, str]:
    """Parts of a reference that can be pushed; raises ContainerError for one with a registry."""
    name, _, tag = reference.rpartition(":")
    host, slash, _ = name.partition("/")
    if "@" in reference or (slash and (re.search("[.:]", host) or host == "localhost")):
        raise ContainerError(
            f"IMAGE={os.environ.get('IMAGE')}: IMAGE is the image's own name, as mine or team/mine "
            "or mine:1; where it is pushed to is REGISTRY=HOST:PORT, or ECR without it"
        )
    return name, tag


def check_revision(engine: Engine, reference: str) -> None:
    """Raises ContainerError unless the image is there and was built from this commit."""
    image = engine.image(reference)
    if image is None:
        raise ContainerError(f"there is no image {reference}: run `make image` first")
    config = image.get("Config")
    labels = config.get("Labels") if isinstance(config, dict) else None
    built = (labels or {}).get(REVISION_LABEL, "another project")
    if built != revision():
        raise ContainerError(
            f"{reference} was built from {built}, but the tree is at {revision()}: "
            "run `make image` again, then push"
        )


def log_in(engine: Engine, name: str) -> str:
    """Make sure ECR has the repository, log the engine in, return the registry's host."""
    # boto3 is needed here only, and only without REGISTRY.
    from launch.aws import ecr

    ecr.ensure_repository(name)
    user, password, registry = ecr.credentials()
    engine.call("login", "--username", user, "--password-stdin", registry, text_in=password)
    return registry


def say(text: str) -> None:
    sys.stdout.write(f"image: {text}\n")
    sys.stdout.flush()


def publish() -> None:
    """Push, and say what the launch config takes."""
    say(f"pushed; give the launcher\n  target.image={push()}")


COMMANDS: dict[str, Callable[[], None]] = {"build": build, "push": publish}


def main(arguments: list[str]) -> None:
    """Run one command; an error is one line on stderr and exit code 1."""
    if len(arguments) != 1 or arguments[0] not in COMMANDS:
        sys.exit(f"image: name one of {', '.join(COMMANDS)}, not {arguments or 'nothing'}")
    try:
        COMMANDS[arguments[0]]()
    except ContainerError as error:
        sys.exit(f"image: {error}")
    except KeyboardInterrupt:
        sys.exit("image: stopped")


if __name__ == "__main__":
    main(sys.argv[1:])
