"""The ECR repository, against moto."""

import json

import boto3
import pytest

from launch.aws import ecr
from launch.command_line import LaunchError


@pytest.mark.usefixtures("aws")
def test_the_repository_is_created_once_with_scan_and_expiry() -> None:
    ecr.ensure_repository("mine")
    ecr.ensure_repository("mine")
    client = boto3.client("ecr")
    (found,) = client.describe_repositories(repositoryNames=["mine"])["repositories"]
    assert found["imageScanningConfiguration"] == {"scanOnPush": True}
    policy = json.loads(client.get_lifecycle_policy(repositoryName="mine")["lifecyclePolicyText"])
    assert policy["rules"][0]["selection"]["tagStatus"] == "untagged"


@pytest.mark.usefixtures("aws")
def test_an_existing_repository_is_not_created_again_and_gets_a_missing_expiry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = boto3.client("ecr")
    client.create_repository(repositoryName="mine")

    def forbidden(**_: object) -> None:
        raise AssertionError("used a permission that pushing does not need")

    monkeypatch.setattr(client, "create_repository", forbidden)
    monkeypatch.setattr(boto3, "client", lambda _: client)
    ecr.ensure_repository("mine")
    assert "untagged" in client.get_lifecycle_policy(repositoryName="mine")["lifecyclePolicyText"]


@pytest.mark.usefixtures("aws")
def test_missing_credentials_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(LaunchError, match="credentials"):
        ecr.open_repository("mine")
