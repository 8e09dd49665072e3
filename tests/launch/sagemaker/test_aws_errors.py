"""AWS errors end in one line that says what to do and exit code 1, without a traceback."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from botocore import exceptions

from entry_point.job.program import ExitCode
from launch.sagemaker import __main__ as sagemaker
from launch.sagemaker import hosting
from launch.sagemaker.aws import explain
from tests.launch.conftest import (
    DROPPED,
    MINIMAL,
    REGION,
    ROLE,
    ROOT,
    Answer,
    Aws,
    Terminal,
    refusal,
)

LAUNCH = ("train", *MINIMAL)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("program", ["launch.setup_aws Bucket=some-bucket", "entry_point --help"])
def test_a_program_whose_reader_has_enough_ends_without_a_word(
    program: str, unbuffered: str
) -> None:
    command = [sys.executable, "-m", *program.split()]
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


@pytest.mark.parametrize(
    ("code", "message", "advice"),
    [
        (
            "ResourceLimitExceeded",
            "The service limit 'ml.c7i.2xlarge for training job usage' is 0\n Instances",
            ["Service Quotas", "target.spot=true"],
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
    ],
)
def test_an_error_of_the_service_is_one_line_with_advice(
    aws: Aws, terminal: Terminal, code: str, message: str, advice: list[str]
) -> None:
    aws.refuse("CreateTrainingJob", code, message)
    line = terminal.refusal(sagemaker.main, *LAUNCH)
    assert f"({code}) when calling the CreateTrainingJob operation: " in line
    assert all(part in line for part in advice), line


def test_an_error_that_needs_no_advice_gets_none(aws: Aws, terminal: Terminal) -> None:
    message = "not authorized: kms:Decrypt on secret"
    aws.refuse("CreateTrainingJob", "ValidationException", message)
    assert terminal.refusal(sagemaker.main, *LAUNCH).endswith(message)


def test_missing_credentials_say_how_to_sign_in_and_those_of_a_profile_are_found(
    aws: Aws, terminal: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    line = terminal.refusal(sagemaker.main, *LAUNCH)
    assert line.startswith("Unable to locate credentials") and "aws sso login" in line
    assert not aws.calls
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert "(work)" in terminal.refusal(sagemaker.main, *LAUNCH)
    file = tmp_path / "credentials"
    file.write_text("[work]\naws_access_key_id=a\naws_secret_access_key=b\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    terminal.out(sagemaker.main, *LAUNCH)


@pytest.mark.parametrize(
    "refused", [refusal("ResourceInUse", "a job with this name already exists"), (500, {})]
)
def test_a_job_that_may_run_although_no_answer_came_is_named(
    aws: Aws, terminal: Terminal, refused: Answer
) -> None:
    aws.answers["CreateTrainingJob"] = [DROPPED, refused]
    may, error = terminal.refusals(sagemaker.main, *LAUNCH, "job.name=mine")
    assert may == (
        'job mine may have been created all the same: see make sagemaker ARGS="status mine"'
    )
    assert "when calling the CreateTrainingJob operation" in error


def test_ctrl_c_while_a_job_is_created_names_the_job(aws: Aws, terminal: Terminal) -> None:
    def interrupt(_body: bytes) -> tuple[int, str]:
        os.kill(os.getpid(), signal.SIGINT)
        return 200, "{}"

    aws.answers["CreateTrainingJob"] = [interrupt]
    line = terminal.refusal(sagemaker.main, *LAUNCH, "job.name=mine", code=130)
    assert line.startswith("job mine may have been created all the same: see make sagemaker")


@pytest.mark.usefixtures("aws")
def test_a_missing_region_says_where_to_set_it(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert "AWS_DEFAULT_REGION" in terminal.refusal(sagemaker.main, *LAUNCH)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    terminal.out(sagemaker.main, *LAUNCH)


@pytest.mark.usefixtures("aws")
def test_an_aws_that_cannot_be_reached_is_one_line(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    line = terminal.refusal(sagemaker.main, *LAUNCH)
    assert "Could not connect to the endpoint URL" in line


@pytest.mark.parametrize(
    "error",
    [
        exceptions.PartialCredentialsError(provider="env", cred_var="key"),
        exceptions.UnauthorizedSSOTokenError(),
        exceptions.TokenRetrievalError(provider="sso", error_msg="expired"),
        exceptions.CredentialRetrievalError(provider="x", error_msg="y"),
    ],
)
def test_a_login_that_is_missing_or_over_says_how_to_sign_in(
    error: exceptions.BotoCoreError,
) -> None:
    line = explain(error)
    assert line and "run `aws sso login` or `aws configure`" in line and "\n" not in line


@pytest.mark.usefixtures("aws")
def test_a_login_by_sso_that_is_over_is_told_without_the_traceback_that_botocore_logs(
    terminal: Terminal,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    account = "sso_account_id=123456789012\nsso_role_name=mine\n"
    file = tmp_path / "config"
    file.write_text(f"[profile sso]\nsso_start_url=https://a\nsso_region={REGION}\n{account}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(file))
    monkeypatch.setenv("AWS_PROFILE", "sso")
    for main, words in ((sagemaker.main, ["status"]), (hosting.main, ["undeploy", "a"])):
        assert "run `aws sso login`" in terminal.refusal(main, *words)
    assert not caplog.records


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("launch.sagemaker.__main__.open_session", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        sagemaker.main(["status"])
