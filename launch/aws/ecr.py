"""The one repository in Amazon ECR that the image goes to. Needs boto3."""

import base64
import json
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from launch.containers.engine import ContainerError
from launch.request.launch_errors import explain

# An image that lost its tag to a newer build is of no use to anyone after two weeks.
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
    """Create the repository with scans on push, and its expiry, where they are missing.

    Who may push but not create needs nothing more once someone has done so.
    """
    try:
        client = boto3.client("ecr")
        try:
            client.describe_repositories(repositoryNames=[name])
        except client.exceptions.RepositoryNotFoundException:
            client.create_repository(
                repositoryName=name, imageScanningConfiguration={"scanOnPush": True}
            )
        try:
            ensure_expiry(client, name)
        except ClientError as error:
            # Housekeeping, which not everyone who may push may do.
            if error.response["Error"]["Code"] != "AccessDeniedException":
                raise
    except (BotoCoreError, ClientError) as error:
        raise ContainerError(explain(error) or str(error)) from error


def ensure_expiry(client: Any, name: str) -> None:
    """Give the repository its lifecycle policy unless it has one."""
    try:
        client.get_lifecycle_policy(repositoryName=name)
    except client.exceptions.LifecyclePolicyNotFoundException:
        policy = json.dumps(LIFECYCLE)
        client.put_lifecycle_policy(repositoryName=name, lifecyclePolicyText=policy)


def credentials() -> tuple[str, str, str]:
    """User, password and host of this account's registry, good for 12 hours."""
    try:
        answer = boto3.client("ecr").get_authorization_token()
    except (BotoCoreError, ClientError) as error:
        raise ContainerError(explain(error) or str(error)) from error
    grant = answer["authorizationData"][0]
    user, password = base64.b64decode(grant["authorizationToken"]).decode().split(":", 1)
    return user, password, grant["proxyEndpoint"].removeprefix("https://")
