"""AWS errors end in one line that says what to do and exit code 1, without a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from botocore import exceptions

from entry_point.job.program import ExitCode
from launch.sagemaker import __main__ as sagemaker
from launch.sagemaker.aws import explain
from tests.launch.conftest import BUCKET, ROLE, Aws

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "program", [("launch.setup_aws", "Bucket=some-bucket"), ("entry_point", "env")]
)
def test_a_program_whose_reader_has_enough_ends_without_a_word(
    program: tuple[str, str], unbuffered: str
) -> None:
    command = [sys.executable, "-m", *program]
    environment = {**os.environ, "DRY_RUN": "1", "PYTHONUNBUFFERED": unbuffered}
    reader, writer = os.pipe()
    os.close(reader)  # as `| head` does once it has its lines
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=writer, stderr=subprocess.PIPE, text=True
        )
    finally:
        os.close(writer)
    assert (done.stderr, done.returncode) == ("", ExitCode.NO_READER)


def arguments(image: str, *more: str) -> list[str]:
    return [
        "train",
        f"target.image={image}",
        f"job.role={ROLE}",
        f"job.output=s3://{BUCKET}/x",
        *more,
    ]


def error_line(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """The single line that a failing command writes to stderr."""
    assert sagemaker.main(command) == 1
    line = capsys.readouterr().err
    assert line.endswith("\n") and line.count("\n") == 1, line
    return line


@pytest.mark.parametrize(
    ("code", "message", "advice"),
    [
        (
            "ResourceLimitExceeded",
            "The service limit 'ml.c7i.2xlarge for training job usage' is 0\n Instances",
            ["Service Quotas", "target.spot=true"],
        ),
        (
            "ResourceInUse",
            "Training job names must be unique within an AWS account and region",
            ["must be unique"],
        ),
        (
            "ValidationException",
            f"Could not assume role {ROLE}. Please ensure that the role exists",
            ["trust policy", "iam:PassRole", "make setup-aws"],
        ),
        (
            "ValidationException",
            "Cannot pull the image 1.dkr.ecr.eu-west-1.amazonaws.com/x",
            ["make push", "ecr:BatchGetImage"],
        ),
        (
            "AccessDeniedException",
            "User is not authorized to perform: iam:PassRole on resource",
            ["you need iam:PassRole on job.role"],
        ),
        ("ExpiredTokenException", "The security token is expired", ["is expired", "sso login"]),
        ("UnrecognizedClientException", "The token is invalid", ["is invalid", "sso login"]),
        ("SomethingNew", "nobody knows it yet", ["nobody knows it yet"]),
    ],
)
def test_service_error_is_one_line_with_advice(
    aws: Aws, capsys: pytest.CaptureFixture[str], code: str, message: str, advice: list[str]
) -> None:
    image = aws.pretend_image()
    aws.refuse("CreateTrainingJob", code, message)
    line = error_line(capsys, *arguments(image))
    assert f"({code}) when calling the CreateTrainingJob operation: " in line
    assert all(part in line for part in advice), line


def test_advice_about_images_is_not_given_for_keys_and_secrets(
    aws: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    image = aws.pretend_image()
    aws.refuse("CreateTrainingJob", "ValidationException", "not authorized: kms:Decrypt on secret")
    assert "make push" not in error_line(capsys, *arguments(image))


def test_missing_credentials_say_how_to_sign_in(
    aws: Aws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = aws.pretend_image()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    aws.calls.clear()
    line = error_line(capsys, *arguments(image))
    assert line.startswith("Unable to locate credentials") and "aws sso login" in line
    assert not aws.calls


def test_missing_region_says_where_to_set_it(
    aws: Aws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = aws.pretend_image()
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    line = error_line(capsys, *arguments(image))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert "AWS_DEFAULT_REGION" in line and sagemaker.main(arguments(image)) == 0


def test_unknown_profile_is_named(
    aws: Aws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = aws.pretend_image()
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    line = error_line(capsys, *arguments(image))
    assert "(nobody)" in line


def test_unreachable_aws_is_one_line(
    aws: Aws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = aws.pretend_image()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert "Could not connect to the endpoint URL" in error_line(capsys, *arguments(image))


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (exceptions.PartialCredentialsError(provider="env", cred_var="key"), "aws configure"),
        (exceptions.UnauthorizedSSOTokenError(), "aws sso login"),
        (exceptions.TokenRetrievalError(provider="sso", error_msg="expired"), "aws sso login"),
        (exceptions.CredentialRetrievalError(provider="x", error_msg="y"), "aws sso login"),
    ],
)
def test_client_side_errors_of_boto3_are_explained(
    error: exceptions.BotoCoreError, advice: str
) -> None:
    line = explain(error)
    assert line is not None and advice in line and "\n" not in line


def test_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("launch.sagemaker.__main__.open_session", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        sagemaker.main(["status"])


def test_interrupted_command_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("launch.sagemaker.__main__.open_session", interrupted)
    assert sagemaker.main(["status"]) == 130


def test_credentials_in_a_file_are_found(
    aws: Aws, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    image = aws.pretend_image()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    file = tmp_path / "credentials"
    file.write_text("[work]\naws_access_key_id=a\naws_secret_access_key=b\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert sagemaker.main(arguments(image)) == 0
