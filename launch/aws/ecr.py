"""The image's repository in Amazon ECR: creating it, logging in, looking up an image."""

import base64
import json
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from launch.aws.aws_errors import explain, is_denied
from launch.aws.session import aws_client
from launch.request.image_checks import ECR_IMAGE, is_for_other_device
from launch.request.launch_config import Target
from launch.request.launch_errors import LaunchError

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
    match = ECR_IMAGE.fullmatch(target.image or "")
    assert match, "checked before"
    wanted = {"imageTag": match["tag"] or "latest"}
    if match["digest"]:
        wanted = {"imageDigest": match["digest"]}
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
