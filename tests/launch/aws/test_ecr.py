"""The ECR repository, on moto behind HTTP."""

import json
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from launch import image
from launch.aws import ecr
from launch.containers.engine import ContainerError, Engine
from tests.launch.containers.conftest import FakeEngine


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "made-up")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "made-up")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    yield
    boto3.client("ecr").delete_repository(repositoryName="mine", force=True)
    server.stop()


@pytest.mark.usefixtures("aws")
def test_the_repository_is_created_once_with_scans_and_expiry() -> None:
    ecr.ensure_repository("mine")
    ecr.ensure_repository("mine")
    client = boto3.client("ecr")
    (found,) = client.describe_repositories(repositoryNames=["mine"])["repositories"]
    assert found["imageScanningConfiguration"] == {"scanOnPush": True}
    policy = json.loads(client.get_lifecycle_policy(repositoryName="mine")["lifecyclePolicyText"])
    assert policy["rules"][0]["selection"]["tagStatus"] == "untagged"


@pytest.mark.usefixtures("aws")
def test_a_repository_that_is_there_is_not_created_again_and_gets_the_expiry_it_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = boto3.client("ecr")
    client.create_repository(repositoryName="mine")

    def forbidden(**_: object) -> None:
        raise AssertionError("asked for a right that pushing does not need")

    monkeypatch.setattr(client, "create_repository", forbidden)
    monkeypatch.setattr(boto3, "client", lambda _: client)
    ecr.ensure_repository("mine")
    assert "untagged" in client.get_lifecycle_policy(repositoryName="mine")["lifecyclePolicyText"]


@pytest.mark.usefixtures("aws")
def test_the_password_goes_through_stdin_and_never_into_the_arguments(
    fake_engine: FakeEngine, tmp_path: Path
) -> None:
    heard = tmp_path / "stdin"
    calls = fake_engine(f"cat >{heard}")
    registry = image.log_in(Engine((str(tmp_path / "bin" / "docker"),)), "mine")
    assert registry.endswith(".dkr.ecr.eu-west-1.amazonaws.com")
    _, password, _ = ecr.credentials()
    assert heard.read_text() == password
    assert calls.read_text() == f"login --username AWS --password-stdin {registry}\n"


def test_missing_credentials_are_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    with pytest.raises(ContainerError, match="credentials"):
        ecr.credentials()
