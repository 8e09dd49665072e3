"""The one repository in Amazon ECR that the image goes to. Needs boto3."""

import base64
import json

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from launch.engine import ContainerError
from launch.errors import explain

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
    """Create the repository, with scans on push and expiry, unless it is there already."""
    try:
        client = boto3.client("ecr")
        try:
            client.create_repository(
                repositoryName=name, imageScanningConfiguration={"scanOnPush": True}
            )
        except client.exceptions.RepositoryAlreadyExistsException:
            return
        client.put_lifecycle_policy(repositoryName=name, lifecyclePolicyText=json.dumps(LIFECYCLE))
    except (BotoCoreError, ClientError) as error:
        raise ContainerError(explain(error) or str(error)) from error


def credentials() -> tuple[str, str, str]:
    """User, password and host of this account's registry, good for 12 hours."""
    try:
        answer = boto3.client("ecr").get_authorization_token()
    except (BotoCoreError, ClientError) as error:
        raise ContainerError(explain(error) or str(error)) from error
    grant = answer["authorizationData"][0]
    user, password = base64.b64decode(grant["authorizationToken"]).decode().split(":", 1)
    return user, password, grant["proxyEndpoint"].removeprefix("https://")
