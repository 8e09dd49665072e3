"""AWS for these tests: moto behind real HTTP, with every call recorded."""

import functools
import io
import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import boto3
import pytest
from botocore.loaders import JSONFileLoader
from botocore.retries.standard import ExponentialBackoff
from moto.logs.responses import LogsResponse
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server

from entry_point.config.train_config import load_train_config
from launch import setup_aws
from launch.sagemaker import plan
from tests.needs import lacks

REGION = "eu-west-1"
ACCOUNT = "123456789012"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/training"
REGISTRY = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com"
IMAGE = f"{REGISTRY}/training@sha256:{'0' * 64}"
BUCKET = "bucket-of-the-tests"
JOB = "the-job"
MODEL = f"s3://{BUCKET}/runs/{JOB}/output/model.tar.gz"
MINIMAL = [f"job.role={ROLE}", f"job.output=s3://{BUCKET}/runs", f"target.image={IMAGE}"]
ROOT = Path(__file__).resolve().parent.parent.parent

# moto's CloudFormation imports its API Gateway, which needs this package for nothing done here.
for _name in ("", ".validation", ".validation.exceptions"):
    sys.modules.setdefault(f"openapi_spec_validator{_name}", MagicMock())

# `make test ONLY=launch` creates the environments of the SDKs.
collect_ignore = [] if "REQUIRE_SDKS" in os.environ else ["sdk"]


@dataclass
class Call:
    """One received HTTP request: `CreateTrainingJob`, or `PUT /bucket/key` for S3."""

    operation: str
    body: bytes
    key: str
    """The caller's AWS_ACCESS_KEY_ID."""

    @property
    def request(self) -> dict[str, Any]:
        parsed = json.loads(self.body)
        assert isinstance(parsed, dict)
        return parsed


Answer = tuple[int, dict[str, Any] | str] | Callable[[bytes], tuple[int, str]] | None
"""Status and body (JSON, or XML for S3) to answer with instead of moto, or what makes them of the
request's body. None: moto answers. DROPPED: the connection is closed."""
DROPPED: Answer = (0, {})


class _Handler(MotoRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        """Print nothing: the calls are recorded."""

    def connection_dropped(self, *_: Any) -> None:
        """Close the connection, rather than wait for another request."""
        self.close_connection = True


def refusal(code: str, message: str = "no") -> Answer:
    return 400, {"__type": code, "message": message}


@dataclass
class Aws:
    """The server: its address, the recorded calls, the answers that replace moto's."""

    url: str = ""
    calls: list[Call] = field(default_factory=list)
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    """Operation -> its next answers; the last one repeats."""
    environment: dict[str, str] = field(default_factory=dict)

    def refuse(self, operation: str, code: str, message: str = "no") -> None:
        """Make every further call of the operation fail as on AWS."""
        self.answers[operation] = [refusal(code, message)]

    def made(self, operation: str) -> list[dict[str, Any]]:
        return [call.request for call in self.calls if call.operation == operation]

    def client(self, service: str) -> Any:
        return boto3.client(service)

    def application(self) -> Callable[..., Iterable[bytes]]:
        moto = DomainDispatcherApplication(create_backend_app)

        def record(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            sent = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            environ["wsgi.input"] = io.BytesIO(sent)
            target = environ.get("HTTP_X_AMZ_TARGET", "")
            name = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"
            if target:
                name = target.rsplit(".", 1)[-1]
            elif sent.startswith(b"Action="):  # CloudFormation, IAM and STS
                name = sent.decode().partition("=")[2].partition("&")[0]
            signature = environ.get("HTTP_AUTHORIZATION", "").partition("Credential=")[2]
            self.calls.append(Call(name, sent, signature.partition("/")[0]))
            queue = self.answers.get(name, [None])
            if answer := queue.pop(0) if len(queue) > 1 else queue[0]:
                if answer is DROPPED:
                    raise ConnectionAbortedError
                if callable(answer):
                    answer = answer(sent)
                start_response(f"{answer[0]} -", [("Content-Type", "application/x-amz-json-1.1")])
                body = answer[1] if isinstance(answer[1], str) else json.dumps(answer[1])
                return [body.encode()]
            found: Iterable[bytes] = moto(environ, start_response)
            return found

        return record


@pytest.fixture(scope="session", autouse=True)
def _services_described_once() -> Iterator[None]:
    """Cache botocore's service models, which it reads again for each session."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            JSONFileLoader, "load_file", staticmethod(functools.cache(JSONFileLoader().load_file))
        )
        yield


@pytest.fixture(scope="session", autouse=True)
def _job_configs_composed_once() -> Iterator[None]:
    """Most launches here have the same overrides for the job, which take long to compose."""
    compose = functools.cache(load_train_config)
    with pytest.MonkeyPatch.context() as patch:

        def once(overrides: Sequence[str], **settings: Any) -> Any:
            return compose(tuple(overrides), **settings)

        patch.setattr(plan, "load_train_config", once)
        yield


@pytest.fixture(scope="session", autouse=True)
def _streams_have_a_prefix() -> Iterator[None]:
    """FilterLogEvents reads the streams with a prefix; moto's reads all."""
    usual = LogsResponse._get_param

    def get(self: LogsResponse, name: str, default: Any = None) -> Any:
        prefix = usual(self, "logStreamNamePrefix")
        group = self.logs_backend.groups.get(usual(self, "logGroupName"))
        if name == "logStreamNames" and prefix and group:
            return [each for each in group.streams if each.startswith(prefix)] or ["none"]
        return usual(self, name, default)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogsResponse, "_get_param", get)
        yield


@pytest.fixture(scope="session")
def server() -> Iterator[Aws]:
    aws = Aws()
    running = make_server("127.0.0.1", 0, aws.application(), True, request_handler=_Handler)
    aws.url = f"http://127.0.0.1:{running.server_port}"
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    yield aws
    running.shutdown()
    thread.join()


@pytest.fixture
def aws(server: Aws, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Aws:
    """An account with ROLE and BUCKET in one region, and made-up credentials that boto3 finds."""
    server.environment = {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ACCESS_KEY_ID": "made-up",
        "AWS_SECRET_ACCESS_KEY": "made-up",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(tmp_path / "no-config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "no-credentials"),
    }
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_SESSION_TOKEN", "DRY_RUN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    # boto3 caches its first session with the environment of that time.
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    # Retry without waiting.
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda *_: 0)
    urllib.request.urlopen(f"{server.url}/moto-api/reset", data=b"").close()
    server.answers.clear()
    trust = '{"Principal": {"Service": "sagemaker.amazonaws.com"}}'
    server.client("iam").create_role(RoleName="training", AssumeRolePolicyDocument=trust)
    server.client("s3").create_bucket(
        Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION}
    )
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    server.calls.clear()
    server.answers.clear()
    return server


Main = Callable[[list[str]], int]


def job_state(status: str = "InProgress", **more: Any) -> Answer:
    """How the service describes a training job."""
    return 200, {
        "TrainingJobName": JOB,
        "TrainingJobStatus": status,
        "SecondaryStatus": "Training" if status == "InProgress" else status,
        **more,
    }


def answer_job(aws: Aws, status: str = "Completed", **more: Any) -> None:
    """Have the service describe a training job with a model."""
    description: dict[str, Any] = {
        "RoleArn": ROLE,
        "AlgorithmSpecification": {"TrainingImage": IMAGE},
        "ResourceConfig": {"InstanceType": "ml.c7i.2xlarge", "InstanceCount": 1},
        "ModelArtifacts": {"S3ModelArtifacts": MODEL},
    }
    aws.answers["DescribeTrainingJob"] = [job_state(status, **description | more)]


@dataclass
class Terminal:
    """What launchers print that run in this process."""

    capture: pytest.CaptureFixture[str]

    def out(self, main: Main, *arguments: str) -> str:
        """What a command prints that succeeds."""
        code, told = main([*arguments]), self.capture.readouterr()
        assert code == 0, told.err
        return told.out

    def refusals(self, main: Main, *arguments: str, code: int = 1) -> list[str]:
        """The lines with which a command is refused."""
        assert main([*arguments]) == code
        return self.capture.readouterr().err.splitlines()

    def refusal(self, main: Main, *arguments: str, code: int = 1) -> str:
        """The single line with which a command is refused."""
        (line,) = self.refusals(main, *arguments, code=code)
        return line


@pytest.fixture
def terminal(capfd: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capfd)


@pytest.fixture
def dry_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches print their requests, for the tests' region."""
    monkeypatch.setenv("DRY_RUN", "1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)


@pytest.fixture
def bucket(aws: Aws) -> Any:
    """boto3's S3 client, in an account with BUCKET."""
    return aws.client("s3")


@functools.cache
def find_aws_cli() -> tuple[str, str]:
    """The path of an AWS CLI of version 2, and what it says of its version.

    Another program called aws may come before it.
    """
    for folder in os.get_exec_path():
        if path := shutil.which("aws", path=folder):
            done = subprocess.run([path, "--version"], capture_output=True, text=True)
            if done.stdout.startswith("aws-cli/2"):
                return path, done.stdout.strip()
    lacks("version 2 of the AWS CLI", "apt-get install awscli")


@pytest.fixture
def aws_cli(aws: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Aws:
    """The account, which the command `aws` reaches, too; its settings are written elsewhere."""
    from moto.cloudformation.models import ChangeSet

    monkeypatch.setattr(setup_aws, "MINE", tmp_path / "mine.yaml")
    path, version = find_aws_cli()
    command = tmp_path / "bin" / "aws"
    command.parent.mkdir()
    # It repeats the version, which takes half a second to ask. Debian's does not read
    # AWS_ENDPOINT_URL.
    command.write_text(
        f"#!/bin/sh\n[ \"$*\" = --version ] && echo '{version}' && exit\n"
        f'exec {path} --endpoint-url {aws.url} "$@"\n'
    )
    command.chmod(0o755)

    def apply(changes: ChangeSet) -> None:
        changes.stack.update(changes.template, changes.role_arn, changes.parameters)

    # moto's own forgets the outputs.
    monkeypatch.setattr(ChangeSet, "apply", apply)
    monkeypatch.setenv("PATH", str(command.parent), prepend=os.pathsep)
    return aws
