"""Build the training image and push it: ``make image`` and ``make push``.

``python -m launch.image build|push`` reads these environment variables (``make image DEVICE=gpu``
sets them):

IMAGE          name of the image and of its repository, without a registry; optional ``:TAG``
DEVICE         ``cpu`` (default) or ``gpu``: selects the AWS base image; part of the tag
BASE_IMAGE     another base image
PLATFORM       ``linux/arm64`` or ``linux/amd64``; default: the engine's own
PREBUILD       1 compiles the operator into the image
EXTRAS         further requirements/*.in to install, such as ``dali``
BUILD_OPTIONS  further ``docker build`` options, for example for a proxy
REGISTRY       registry to push to, such as ``localhost:5000`` or ``ghcr.io/me``; default: ECR
ENGINE         container engine command; default: docker, else podman
"""

import os
import re
import shlex
import sys
from collections.abc import Callable

from launch.command_line import LaunchError
from launch.containers import image_name
from launch.containers.engine import Engine, find_engine

# Set in the Dockerfile.
REVISION_LABEL = "org.opencontainers.image.revision"


def version() -> str:
    """The project's version, from pyproject.toml."""
    text = (image_name.ROOT / "pyproject.toml").read_text()
    found = re.search(r'^version = "(.+)"', text, re.M)
    return found[1] if found else "unknown"


def build_arguments() -> list[str]:
    """Arguments for ``docker build``; raises LaunchError for an invalid setting."""
    values = {
        "DEVICE": image_name.device(),
        "VERSION": version(),
        "REVISION": image_name.revision(),
        "PREBUILD": os.environ.get("PREBUILD") or "0",
    }
    if values["PREBUILD"] not in ("0", "1"):
        raise LaunchError(
            f"PREBUILD={values['PREBUILD']}: must be 0, or 1 to compile the operator into the image"
        )
    for name in ("BASE_IMAGE", "EXTRAS"):
        if value := os.environ.get(name):
            values[name] = value
    settings = []
    if platform := image_name.platform():
        settings.append(f"--platform={platform}")
        if "BASE_IMAGE" not in values:
            values["BASE_IMAGE"] = default_base(platform)
    settings += [f"--build-arg={name}={value}" for name, value in values.items()]
    return [*settings, *shlex.split(os.environ.get("BUILD_OPTIONS", ""))]


def default_base(platform: str) -> str:
    """The stage of the Dockerfile that is a platform's base; raises LaunchError without one."""
    device = image_name.device()
    if platform != "linux/arm64":
        return device
    if device == "gpu":
        raise LaunchError(
            "DEVICE=gpu PLATFORM=linux/arm64: there is no default base; set BASE_IMAGE to an image "
            "for arm64 with CUDA and torch"
        )
    return "arm64"


def build() -> None:
    """Build the image of the current tree and print its name, size and ID."""
    engine = find_engine()
    reference = image_name.local_reference()
    engine.build(reference, *build_arguments(), str(image_name.ROOT))
    image = engine.image(reference)
    if image is None:
        raise LaunchError(f"{reference} was built, but {engine.command[0]} does not list it")
    say(f"{reference}  {image['Size'] / 1e6:,.0f} MB  {image['Id']}")
    after = "" if image_name.is_committed() else " after you commit all changes"
    say(f"next: `make docker-train` trains in it, `make push` publishes it{after}")


def push() -> str:
    """Push the image of this commit; returns its URI with digest.

    Raises LaunchError if the tree has uncommitted changes.
    """
    if not image_name.is_committed():
        state = image_name.revision().rsplit("-", 1)[-1]
        raise LaunchError(
            f"the tree is {state}{image_name.changed_files()}, so no commit identifies this image: "
            "commit, run `make image`, then `make push`"
        )
    reference = image_name.local_reference()
    name, tag = image_name.name_and_tag(reference)
    engine = find_engine()
    check_revision(engine, reference)
    repository = f"{os.environ.get('REGISTRY') or log_in(engine, name)}/{name}"
    engine.call("tag", reference, f"{repository}:{tag}")
    return f"{repository}@{engine.push(repository, tag)}"


def check_revision(engine: Engine, reference: str) -> None:
    """Raise LaunchError unless the image exists and was built from this commit."""
    image = engine.image(reference)
    if image is None:
        raise LaunchError(f"there is no image {reference}: run `make image` first")
    labels = image["Config"].get("Labels") or {}
    built = labels.get(REVISION_LABEL, "another project")
    if built != image_name.revision():
        raise LaunchError(
            f"{reference} was built from {built}, but the tree is at {image_name.revision()}: "
            "run `make image` again, then `make push`"
        )


def log_in(engine: Engine, name: str) -> str:
    """Create the ECR repository if it is missing and log the engine in; returns the registry."""
    # Only pushing to ECR needs boto3.
    from launch.aws.ecr import open_repository

    user, password, registry = open_repository(name)
    engine.call("login", "--username", user, "--password-stdin", registry, text_in=password)
    return registry


def say(text: str) -> None:
    sys.stdout.write(f"image: {text}\n")
    sys.stdout.flush()


def publish() -> None:
    """Push the image and print the override that uses it."""
    say(f"pushed; pass this to `make sagemaker-train`:\n  target.image={push()}")


COMMANDS: dict[str, Callable[[], None]] = {"build": build, "push": publish}


def main(arguments: list[str]) -> None:
    """Run one command; an error is one line on stderr and exit code 1."""
    if len(arguments) != 1 or arguments[0] not in COMMANDS:
        given = " ".join(arguments) or "nothing"
        sys.exit(f"image: {given}: must be one of {', '.join(COMMANDS)}")
    try:
        COMMANDS[arguments[0]]()
    except LaunchError as error:
        sys.exit(f"image: {error}")
    except KeyboardInterrupt:
        sys.exit("image: stopped")


if __name__ == "__main__":
    main(sys.argv[1:])
