"""Logging in to the ECR repository, against moto."""

import pytest

from entry_point.contract.program import UserError
from launch.sagemaker import ecr
from tests.launch.conftest import REGION, Aws


@pytest.mark.usefixtures("aws")
def test_a_repository_that_does_not_exist_is_named_with_the_command_that_creates_it() -> None:
    with pytest.raises(UserError) as error:
        ecr.open_repository("mine")
    assert str(error.value) == (
        f"IMAGE=mine: there is no such repository in {REGION}; "
        '`make setup-aws ARGS="Bucket=NAME Repository=mine"` creates it'
    )


def test_a_push_needs_no_permission_to_create_repositories(aws: Aws) -> None:
    aws.client("ecr").create_repository(repositoryName="mine")
    aws.calls.clear()
    user, password, registry = ecr.open_repository("mine")
    assert user == "AWS" and password and registry.startswith("123456789012.dkr.ecr.")
    operations = [call.operation for call in aws.calls]
    assert operations == ["DescribeRepositories", "GetAuthorizationToken"]


@pytest.mark.usefixtures("aws")
def test_missing_credentials_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(UserError, match="credentials"):
        ecr.open_repository("mine")
