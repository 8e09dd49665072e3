"""Build the training image and push it: ``make image`` and ``make push``.

``python -m launch.image build|push`` reads these environment variables (``make image DEVICE=gpu``
sets them):

IMAGE          name of the image and of its repository, without a registry; optional ``:TAG``, which
               replaces ``DEVICE-COMMIT`` here and ``DEVICE-COMMIT-HASH`` in the registry
DEVICE         ``cpu`` (default) or ``gpu``: selects the AWS base image; part of the tag
BASE_IMAGE     another base image; ``arm64`` for Python's official one with torch
PREBUILD       0 leaves the operator as source, which each job and endpoint compiles at its start
EXTRAS         further requirements/*.in to install, such as ``dali``
BUILD_OPTIONS  further ``docker build`` options, for example for a proxy
REGISTRY       registry to push to, such as ``localhost:5000`` or ``ghcr.io/me``; default: ECR
ENGINE         container engine command; default: docker, else podman
"""

import argparse
import base64
import json
import os
import re
import shlex
import sys
from pathlib import Path
from string import Template
from typing import Any

from entry_point.config.retired import retired
from entry_point.job.own_code import content_hash
from entry_point.job.program import UserError, run_program
from launch.engine import Engine, find_engine
from launch.revision import ROOT, commit, is_committed, revision

DEFAULT_NAME = "managed-training-template"
# Set in the Dockerfile.
REVISION_LABEL = "org.opencontainers.image.revision"
# What a build takes besides the commit, by the label that the Dockerfile gives it.
INPUT_LABELS = {
    "BASE_DIGEST": "org.opencontainers.image.base.digest",
    "EXTRAS": "managed-training-template.extras",
    "PREBUILD": "managed-training-template.prebuild",
}


def image_reference() -> str:
    """Name and tag of this tree's image in the local engine."""
    name = os.environ.get("IMAGE") or DEFAULT_NAME
    if ":" in name.rsplit("/", 1)[-1]:
        return name
    return f"{name}:{os.environ.get('DEVICE') or 'cpu'}-{commit()}"


def published_reference(reference: str, image: dict[str, Any]) -> str:
    """Returns the name and the tag of an image in a registry.

    The tag of a commit gets a hash of the build's other inputs and of the architecture. A tag that
    IMAGE names stays as it is.
    """
    if reference == os.environ.get("IMAGE"):
        return reference
    labels = image["Config"].get("Labels") or {}
    inputs = {label: str(labels.get(label)).encode() for label in INPUT_LABELS.values()}
    inputs["architecture"] = image["Architecture"].encode()
    return f"{reference}-{content_hash(inputs)[:8]}"


def built_revision(engine: Engine, reference: str) -> str | None:
    """Returns the revision that an image was built from, None if it does not say.

    Raises UserError if there is no such image.
    """
    image = engine.image(reference)
    if image is None:
        raise UserError(f"there is no image {reference}: run `make image` first")
    revision: str | None = (image["Config"].get("Labels") or {}).get(REVISION_LABEL)
    return revision


def base_digest(engine: Engine, dockerfile: str) -> str:
    """Returns the digest of the base image, which is pulled unless the engine has it.

    Raises UserError if it cannot be pulled.
    """
    name = os.environ.get("BASE_IMAGE") or os.environ.get("DEVICE") or "cpu"
    stage = re.search(rf"^FROM (\S+) AS {re.escape(name)}$", dockerfile, re.M)
    arguments = dict(re.findall(r"^ARG (\w+)=(\S+)$", dockerfile, re.M))
    reference = Template(stage[1]).substitute(arguments) if stage else name
    if engine.image(reference) is None:
        engine.show("pull", reference)
    base = engine.image(reference)
    if base is None:
        raise UserError(
            f"the base image {reference} could not be pulled, the last lines above say why: check "
            "DEVICE, BASE_IMAGE and the network"
        )
    # An image that no registry has, such as one that was built here, has only an ID.
    digest: str = (base.get("RepoDigests") or [base["Id"]])[0]
    return digest.rpartition("@")[2]


def build_arguments(base: str) -> list[str]:
    """Arguments for ``docker build``; ``base`` is the digest of the base image."""
    found = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)
    values = {"VERSION": found[1] if found else "unknown", "REVISION": revision()}
    values["BASE_DIGEST"] = base
    for name in ("DEVICE", "BASE_IMAGE", "PREBUILD", "EXTRAS"):
        if value := os.environ.get(name):
            values[name] = value
    if extras := values.get("EXTRAS"):
        for extra in extras.split():
            if message := retired(f"EXTRAS={extra}"):
                raise UserError(f"EXTRAS={extra}: {message}")
        values["EXTRAS"] = " ".join(sorted({*extras.split()}))
    settings = [f"--build-arg={name}={value}" for name, value in values.items()]
    return [*settings, *shlex.split(os.environ.get("BUILD_OPTIONS", ""))]


def build_image(engine: Engine, reference: str, context: Path) -> None:
    """Run ``docker build``, in the format that every registry and SageMaker accept."""
    option = "--format=docker" if engine.is_podman else "--progress=plain"
    arguments = build_arguments(base_digest(engine, (context / "Dockerfile").read_text()))
    if not engine.show("build", option, f"--tag={reference}", *arguments, str(context)):
        raise UserError(
            "the build failed, its last lines above say why: check DEVICE, BASE_IMAGE "
            "and the network; BUILD_OPTIONS passes a proxy on"
        )


def build(engine: Engine) -> None:
    """Build the image of the current tree and print its name, size, ID and revision."""
    reference = image_reference()
    build_image(engine, reference, ROOT)
    image = engine.image(reference) or {}
    say(f"{reference}  {image['Size'] / 1e6:,.0f} MB  {image['Id']}")
    if is_committed(commit()):
        after = f"as {published_reference(reference, image)}"
    else:
        say(f"the tree has changes that no commit has; the image's label names it {revision()}")
        after = "after you commit all changes"
    say(f"next: `make docker-train` trains in it, `make push` publishes it {after}")


def push(engine: Engine) -> None:
    """Push the image of this commit and print the override that uses it.

    An image that the registry has is not pushed again. Raises UserError if the tree has uncommitted
    changes, if the image is of another commit, or if ECR has another image under its tag.
    """
    if not is_committed(commit()):
        raise UserError(
            f"the tree is {commit()}, so no commit identifies its image: commit what `git status` "
            "lists, run `make image`, then `make push`"
        )
    reference = image_reference()
    built = built_revision(engine, reference)
    if built != commit():
        raise UserError(
            f"{reference} was built from {built}, but the tree is at {commit()}: run `make image` "
            "again, then `make push`"
        )
    image = engine.image(reference) or {}
    name, _, tag = published_reference(reference, image).rpartition(":")
    registry, digests = os.environ.get("REGISTRY"), set[str]()
    if not registry:
        registry, digests = log_in(engine, name, tag)
    pushed = f"{registry}/{name}:{tag}"
    remedy = (
        f"use target.image={pushed}, or run `make image` and `make push` again with "
        f"IMAGE={name}:{tag}-2 added"
    )
    if not digests:
        engine.call("tag", reference, pushed)
        if not engine.show("push", pushed):
            raise UserError(
                f"the push failed, its last lines above say why: check REGISTRY={registry}, and "
                f"log in with `docker login {registry}`; if the tag is taken, {remedy}"
            )
    elif f"sha256:{image['Id'].removeprefix('sha256:')}" not in digests:
        raise UserError(
            f"{pushed} is another image than {reference} here, and a tag is never moved: {remedy}"
        )
    done = "already there" if digests else "pushed"
    say(f"{done}; pass this to `make sagemaker-train`:\n  target.image={pushed}")


def log_in(engine: Engine, name: str, tag: str) -> tuple[str, set[str]]:
    """Log the engine in to ECR for 12 hours.

    Returns the registry, and the digests of the image that the repository has under the tag: of its
    manifest and of its config, one of which is the ID of the same image in an engine.

    Raises UserError if the repository does not exist, and for any error of AWS.
    """
    # Only pushing to ECR needs boto3.
    from botocore.exceptions import BotoCoreError, ClientError

    from launch.sagemaker.aws import aws_client, explain, open_session

    ecr = aws_client(open_session(), "ecr")
    try:
        ecr.describe_repositories(repositoryNames=[name])
        found = ecr.batch_get_image(repositoryName=name, imageIds=[{"imageTag": tag}])["images"]
        grant = ecr.get_authorization_token()["authorizationData"][0]
    except ecr.exceptions.RepositoryNotFoundException as error:
        raise UserError(
            f"IMAGE={name}: there is no such repository in {ecr.meta.region_name}; "
            f'`make setup-aws ARGS="Bucket=NAME Repository={name}"` creates it'
        ) from error
    except (BotoCoreError, ClientError) as error:
        raise UserError(explain(error)) from error
    user, password = base64.b64decode(grant["authorizationToken"]).decode().split(":", 1)
    registry: str = grant["proxyEndpoint"].removeprefix("https://")
    engine.call("login", "--username", user, "--password-stdin", registry, text_in=password)
    digests = {each["imageId"]["imageDigest"] for each in found}
    manifests = [json.loads(each["imageManifest"]) for each in found]
    digests |= {each["config"]["digest"] for each in manifests if "config" in each}
    return registry, digests


def say(text: str) -> None:
    sys.stdout.write(f"image: {text}\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Run one command; an error is one line on stderr."""
    parser = argparse.ArgumentParser(
        "python -m launch.image",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=("build", "push"))
    command = build if parser.parse_args(arguments).command == "build" else push

    def run() -> int:
        command(find_engine())
        return 0

    return run_program("image", run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
