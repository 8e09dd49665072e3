"""The image's repository in Amazon ECR: logging in, looking up an image."""

import base64
import json
import re
import sys
import urllib.request
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from entry_point.config.resolve import TIMM
from entry_point.config.train_config import TrainConfig
from entry_point.contract.program import UserError
from launch.sagemaker.aws import aws_client, explain
from launch.sagemaker.checks import ECR_IMAGE, is_for_other_device
from launch.sagemaker.config import Target

LABEL = "managed-training-template.extras"
"""The image's label with the names in `make image EXTRAS=...`; the Dockerfile sets it."""


def open_repository(name: str) -> tuple[str, str, str]:
    """User, password and host of the registry with this repository, valid for 12 hours.

    Raises UserError for any error of AWS, and if there is no such repository.
    """
    client = boto3.client("ecr")
    try:
        client.describe_repositories(repositoryNames=[name])
        answer = client.get_authorization_token()
    except client.exceptions.RepositoryNotFoundException as error:
        raise UserError(
            f"IMAGE={name}: there is no such repository in {client.meta.region_name}; "
            f'`make setup-aws ARGS="Bucket=NAME Repository={name}"` creates it'
        ) from error
    except (BotoCoreError, ClientError) as error:
        raise UserError(explain(error)) from error
    grant = answer["authorizationData"][0]
    user, password = base64.b64decode(grant["authorizationToken"]).decode().split(":", 1)
    return user, password, grant["proxyEndpoint"].removeprefix("https://")


def require_image(target: Target, session: Any) -> None:
    """Raise UserError if the registry does not have the image, or has it for another device.

    Passes if the caller may not query it: the job's role may still read the image.
    """
    match, wanted = _address(target)
    try:
        answer = aws_client(session, "ecr", region_name=match["region"]).describe_images(
            registryId=match["account"], repositoryName=match["repository"], imageIds=[wanted]
        )
    except ClientError as error:
        code = error.response["Error"]["Code"]
        if code in ("RepositoryNotFoundException", "ImageNotFoundException"):
            raise UserError(
                f"target.image={target.image}: no such image in the registry; `make push` pushes "
                "it and prints its URI"
            ) from error
        if not code.startswith("AccessDenied"):
            raise
        return
    tags: list[str] = [
        tag for image in answer.get("imageDetails", []) for tag in image.get("imageTags", [])
    ]
    if tags and all(is_for_other_device(tag, target.device) for tag in tags):
        raise UserError(
            f"target.image={target.image}: its tag in the registry is {tags[0]}, but "
            f"target.device={target.device}"
        )


def needed_extras(train: TrainConfig) -> dict[str, str]:
    """What a job needs of its image besides job.in: name of requirements/*.in -> the setting."""
    model = train.model.name
    wanted = {
        "dali": ("pipeline=dali", train.pipeline.engine == "dali"),
        "timm": (f"model.name={model}", model.startswith(TIMM)),
        "mlflow": ("loggers=[mlflow]", "mlflow" in train.loggers),
        "onnx": ("trainer.onnx=true", train.trainer.onnx),
    }
    return {extra: setting for extra, (setting, is_used) in wanted.items() if is_used}


def require_extras(target: Target, train: TrainConfig, session: Any) -> None:
    """Raise UserError if the image's label says that it lacks a package that the job needs.

    If the label cannot be read, or an image has none, a warning goes to stderr.
    """
    needed = needed_extras(train)
    if not needed:
        return
    image, label = f"target.image={target.image}", _label(target, session)
    if label is None:
        sys.stderr.write(
            f"{image}: could not read whether it has {', '.join(needed)}; "
            f"{', '.join(needed.values())} needs it\n"
        )
        return
    built_with = label.split()
    missing = [extra for extra in needed if extra not in built_with]
    build = f'`make image EXTRAS="{" ".join([*built_with, *missing])}"`'
    if missing:
        raise UserError(
            *(
                f"{needed[extra]}: {image} was built without {extra}; build it with {build} and "
                "push it"
                for extra in missing
            )
        )


def _address(target: Target) -> tuple[re.Match[str], dict[str, str]]:
    match = ECR_IMAGE.fullmatch(target.image or "")
    assert match, "checked before"
    by_tag = {"imageTag": match["tag"] or "latest"}
    return match, {"imageDigest": match["digest"]} if match["digest"] else by_tag


def _label(target: Target, session: Any) -> str | None:
    """The label LABEL from the image's config in ECR; None if it cannot be read."""
    match, wanted = _address(target)
    ecr = aws_client(session, "ecr", region_name=match["region"])
    place = {"registryId": match["account"], "repositoryName": match["repository"]}
    try:
        (image,) = ecr.batch_get_image(imageIds=[wanted], **place)["images"]
        digest = json.loads(image["imageManifest"])["config"]["digest"]
        url = ecr.get_download_url_for_layer(layerDigest=digest, **place)["downloadUrl"]
        with urllib.request.urlopen(url, timeout=10) as answer:
            label = json.load(answer)["config"]["Labels"][LABEL]
    except (BotoCoreError, ClientError, OSError, LookupError, TypeError, ValueError):
        return None
    return str(label)
