"""Build the training image and push it: ``make image`` and ``make push``.

``python -m launch.image build|push`` reads these environment variables (``make image DEVICE=gpu``
sets them):

IMAGE          name of the image and of its repository, without a registry; optional ``:TAG``, by
               default ``:DEVICE-COMMIT``
DEVICE         ``cpu`` (default) or ``gpu``: selects the AWS base image; part of the tag
BASE_IMAGE     another base image; ``arm64`` for Python's official one with torch
PREBUILD       0 leaves the operator as source, which each job and endpoint compiles at its start
EXTRAS         further requirements/*.in to install, such as ``dali``
BUILD_OPTIONS  further ``docker build`` options, for example for a proxy
REGISTRY       registry to push to, such as ``localhost:5000`` or ``ghcr.io/me``; default: ECR
ENGINE         container engine command; default: docker
"""

import argparse
import os
import shlex
import sys
import tomllib
from pathlib import Path

from entry_point.config.retired import retired
from entry_point.job.program import UserError, run_program
from launch import say
from launch.aws_cli import ask_aws
from launch.engine import Engine, find_engine, make_command
from launch.revision import ROOT, commit, is_committed

DEFAULT_NAME = "managed-training-template"


def image_reference() -> str:
    """Returns name and tag of this tree's image."""
    name = os.environ.get("IMAGE") or DEFAULT_NAME
    if ":" in name.rsplit("/", 1)[-1]:
        return name
    return f"{name}:{os.environ.get('DEVICE') or 'cpu'}-{commit()}"


def build_image(engine: Engine, reference: str, context: Path) -> None:
    """Run ``docker build``. Raises UserError if it fails, or with the engine's own line if it does
    not answer."""
    for extra in os.environ.get("EXTRAS", "").split():
        if message := retired(f"EXTRAS={extra}"):
            raise UserError(f"EXTRAS={extra}: {message}")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    values = {"VERSION": project["version"], "REVISION": commit()}
    for name in ("DEVICE", "BASE_IMAGE", "PREBUILD", "EXTRAS"):
        if value := os.environ.get(name):
            values[name] = value
    arguments = [f"--build-arg={name}={value}" for name, value in values.items()]
    arguments += shlex.split(os.environ.get("BUILD_OPTIONS", ""))
    os.environ["DOCKER_BUILDKIT"] = "1"
    os.environ["BUILDKIT_PROGRESS"] = "plain"
    # SageMaker rejects an image index, which attestations would produce.
    os.environ["BUILDX_NO_DEFAULT_ATTESTATIONS"] = "1"
    engine.call("version")
    if not engine.show("build", f"--tag={reference}", *arguments, str(context)):
        raise UserError(
            "the build failed, its last lines above say why: check DEVICE, BASE_IMAGE "
            "and the network; BUILD_OPTIONS passes a proxy on"
        )


def build(engine: Engine) -> int:
    """Build the image of the current tree and print its name; returns 0."""
    reference = image_reference()
    build_image(engine, reference, ROOT)
    say(f"image: built {reference}")
    before = "" if is_committed(commit()) else ", once you have committed all changes,"
    train, publish = make_command("docker-train"), make_command("image push")
    say(f"image: next: `{train}` trains in it; `{publish}`{before} publishes it")
    return 0


def push(engine: Engine) -> int:
    """Push the image of this commit and print the override that uses it; returns 0.

    Raises UserError if the tree has uncommitted changes, if there is no such image, and if the
    registry refuses it.
    """
    if not is_committed(commit()):
        raise UserError(
            f"the tree is {commit()}, so no commit identifies its image: commit what `git status` "
            f"lists, then run `{make_command('image push')}`"
        )
    reference = image_reference()
    engine.require_image(reference)
    registry = os.environ.get("REGISTRY") or log_in(engine, reference.rpartition(":")[0])
    pushed = f"{registry}/{reference}"
    engine.call("tag", reference, pushed)
    if not engine.show("push", pushed):
        again = make_command("image push", IMAGE=f"{reference}-2")
        raise UserError(
            "the push failed, its last lines above say why. If the tag is taken: tags are never "
            f"moved, so use target.image={pushed}, or run `{again}`. Else check "
            f"REGISTRY={registry}, and log in with `docker login {registry}`"
        )
    say(f"image: pushed; pass this to `make sagemaker-train`:\n  target.image={pushed}")
    return 0


def log_in(engine: Engine, repository: str) -> str:
    """Log the engine in to ECR for 12 hours; returns the registry.

    Raises UserError if the repository does not exist, and for any error of AWS.
    """
    query = ("--query=repositories[0].repositoryUri", "--output=text")
    try:
        uri = ask_aws("ecr", "describe-repositories", f"--repository-names={repository}", *query)
    except UserError as error:
        if "RepositoryNotFound" not in str(error):
            raise
        raise UserError(
            f"IMAGE={repository}: there is no such repository in this account and region; "
            f'`make setup-aws ARGS="Bucket=NAME Repository={repository}"` creates it; its role '
            "then pulls from there only, and stack=OTHER CreateBucket=false makes another"
        ) from error
    registry = uri.removesuffix(f"/{repository}")
    password = ask_aws("ecr", "get-login-password")
    engine.call("login", "--username=AWS", "--password-stdin", registry, text_in=password)
    return registry


def main(arguments: list[str]) -> int:
    """Run one command; an error is one line on stderr."""
    parser = argparse.ArgumentParser(
        "python -m launch.image",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=("build", "push"))
    command = build if parser.parse_args(arguments).command == "build" else push
    return run_program("image", lambda: command(find_engine()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
