"""The image's repository in Amazon ECR: creating it, logging in, looking up an image."""

import base64
import json
import re
import sys
import urllib.request
from collections.abc import Mapping
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from launch.command_line import LaunchError
from launch.image_extras import LABEL, missing_extras
from launch.sagemaker.aws import aws_client, explain, is_denied
from launch.sagemaker.checks import ECR_IMAGE, is_for_other_device
from launch.sagemaker.config import Target

# A newer build takes the tag of an older one; the older image is then useless.
LIFECYCLE = {
    "rules": [
        {
            "rulePriority": 1,
            "description": "untagged images expire",
            "selection": {
                "tagStatus": "untagged",
                "countType": "sinceImagePushed",
                "countUnit": "days",
                "countNumber": 14,
            },
            "action": {"type": "expire"},
        }
    ]
}


def ensure_repository(name: str) -> None:
    """Create the repository with scan on push and image expiry, unless they exist.

    Someone who may push but not create repositories can use an existing one.
    """
    client = boto3.client("ecr")
    try:
        client.describe_repositories(repositoryNames=[name])
    except client.exceptions.RepositoryNotFoundException:
        scan = {"scanOnPush": True}
        client.create_repository(repositoryName=name, imageScanningConfiguration=scan)
    try:
        ensure_expiry(client, name)
    except ClientError as error:
        # Expiry is optional, and pushing does not require the permission to set it.
        if not is_denied(error):
            raise


def ensure_expiry(client: Any, name: str) -> None:
    """Give the repository the lifecycle policy, unless it has one."""
    try:
        client.get_lifecycle_policy(repositoryName=name)
    except client.exceptions.LifecyclePolicyNotFoundException:
        policy = json.dumps(LIFECYCLE)
        client.put_lifecycle_policy(repositoryName=name, lifecyclePolicyText=policy)


def open_repository(name: str) -> tuple[str, str, str]:
    """Ensure the repository; returns user, password and host of its registry, valid for 12 hours.

    Raises LaunchError for any error of AWS.
    """
    try:
        ensure_repository(name)
        answer = boto3.client("ecr").get_authorization_token()
    except (BotoCoreError, ClientError) as error:
        raise LaunchError(explain(error)) from error
    grant = answer["authorizationData"][0]
    user, password = base64.b64decode(grant["authorizationToken"]).decode().split(":", 1)
    return user, password, grant["proxyEndpoint"].removeprefix("https://")


def require_image(target: Target, session: Any) -> list[str]:
    """Raise LaunchError if the registry does not have the image, or has it for another device.

    Returns the image's tags in the registry. Passes without any if the caller may not query it: the
    job's role may still read the image.
    """
    match, wanted = _address(target)
    try:
        answer = aws_client(session, "ecr", region_name=match["region"]).describe_images(
            registryId=match["account"], repositoryName=match["repository"], imageIds=[wanted]
        )
    except ClientError as error:
        code = error.response["Error"]["Code"]
        if code in ("RepositoryNotFoundException", "ImageNotFoundException"):
            raise LaunchError(
                f"target.image={target.image}: no such image in the registry; `make push` pushes "
                "it and prints its URI"
            ) from error
        if not is_denied(error):
            raise
        return []
    tags: list[str] = [
        tag for image in answer.get("imageDetails", []) for tag in image.get("imageTags", [])
    ]
    if tags and all(is_for_other_device(tag, target.device) for tag in tags):
        raise LaunchError(
            f"target.image={target.image}: its tag in the registry is {tags[0]}, but "
            f"target.device={target.device}"
        )
    return tags


def require_extras(target: Target, needed: Mapping[str, str], session: Any) -> None:
    """Raise LaunchError if the image's label says that it lacks a package that the job needs.

    `needed` are names of requirements/*.in -> the setting. If the label cannot be read, or an image
    has none, a warning goes to stderr.
    """
    if not needed:
        return
    image, label = f"target.image={target.image}", _label(target, session)
    missing, warning = missing_extras(image, label, needed, " and push it")
    if warning:
        sys.stderr.write(f"{warning}\n")
    if missing:
        raise LaunchError(*missing)


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
