"""boto3 sessions and clients, and AWS's errors as one line."""

import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from botocore import exceptions

from entry_point.job.program import ExitCode, UserError, run_for_reader
from launch.aws_cli import is_dry_run

ATTEMPTS = 6
"""Number of attempts for a call that is throttled, or gets no answer."""
_LOGIN = "run `aws sso login` or `aws configure`, or set AWS_PROFILE"
# After these errors, it is unknown whether AWS has carried out the request.
_UNANSWERED = (
    exceptions.ReadTimeoutError,
    exceptions.ConnectionClosedError,
    KeyboardInterrupt,
    SystemExit,
)
_NO_LOGIN = (
    exceptions.NoCredentialsError,
    exceptions.PartialCredentialsError,
    exceptions.SSOError,
    exceptions.TokenRetrievalError,
    exceptions.CredentialRetrievalError,
)
# (beginnings of the error code, part of AWS's message, what to do); else AWS's message is enough.
_ADVICE = (
    (("ExpiredToken", "UnrecognizedClient", "InvalidClientTokenId"), "", _LOGIN),
    (
        "ResourceLimitExceeded",
        "",
        "raise this quota in the Service Quotas console, or choose another instance type or fewer "
        "instances; for training, target.spot=true has a separate quota",
    ),
    (
        "ValidationException",
        "ould not assume role",
        "SageMaker cannot assume job.role: its trust policy must name sagemaker.amazonaws.com, "
        "and you need iam:PassRole on it; `make setup-aws` creates such a role",
    ),
    ("AccessDenied", "iam:PassRole", "you need iam:PassRole on job.role"),
    (
        "ValidationException",
        ".dkr.ecr",
        "SageMaker cannot read target.image: push it with `make push`, and allow job.role "
        "ecr:BatchGetImage on it",
    ),
)


def run_and_explain(command: Callable[[], int]) -> int:
    """Returns the command's exit code; for an error that the user can fix, one line on stderr and
    1.

    Ctrl-C gives 130, SIGTERM 143. Any other error is a bug and keeps its traceback.
    """
    # botocore logs the traceback of an expired login before it raises the error.
    logging.getLogger("botocore").setLevel(logging.ERROR)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ExitCode.TERMINATED))
    try:
        return run_for_reader(command)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        text = explain(error)
        if text is None:
            raise
        sys.stderr.write(f"{text}\n")
        return 1


def explain(error: BaseException) -> str | None:
    """Returns one line for an error of boto3, of a file, or a UserError; None for any other
    error."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    text = " ".join(str(error).split())
    if isinstance(error, exceptions.ClientError):
        code = str(error.response.get("Error", {}).get("Code", ""))
        advice = (do for start, part, do in _ADVICE if code.startswith(start) and part in text)
        return "; ".join([text, *list(advice)[:1]])
    if isinstance(error, exceptions.BotoCoreError):
        return f"{text}; {_LOGIN}" if isinstance(error, _NO_LOGIN) else text
    return None


@contextmanager
def creating(what: str, look: str) -> Iterator[None]:
    """Say so if `what` may exist, and is then billed, although its request ends in an error or in
    Ctrl-C; `look` is the command that tells."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, _UNANSWERED) or _may_have_acted(error):
            sys.stderr.write(f"{what} may have been created all the same: see {look}\n")
        raise


def _may_have_acted(error: BaseException) -> bool:
    """Returns whether AWS refuses a repeated request, as after a lost answer, or broke down."""
    if not isinstance(error, exceptions.ClientError):
        return False
    answer = error.response.get("ResponseMetadata", {})
    is_repeated = bool(answer.get("RetryAttempts")) and "already exist" in str(error)
    return is_repeated or answer.get("HTTPStatusCode", 0) >= 500


def refuse_dry_run(command: str) -> None:
    """Raise UserError in a dry run, before a command that has none acts."""
    if is_dry_run():
        raise UserError(f"DRY_RUN=1: {command} has no dry run; nothing was done")


def print_request(request: dict[str, Any]) -> None:
    """Print a request, as a dry run does, without credentials or network."""
    sys.stdout.write(json.dumps(request, indent=2, ensure_ascii=False) + "\n")


def session_unless_dry() -> Any:
    """Returns a boto3 session as of `open_session`; None in a dry run."""
    return None if is_dry_run() else open_session()


def region_of(session: Any) -> str | None:
    """Returns the region of a session; in a dry run without one, None if it is unknown."""
    return session.region_name if session else os.environ.get("AWS_DEFAULT_REGION")


def open_session() -> Any:
    """Returns a boto3 session; raises UserError if it has no region."""
    # Imported here because a dry run does not need it and it takes most of the start-up time.
    import boto3

    session = boto3.Session()
    if not session.region_name:
        raise UserError("no AWS region: set AWS_DEFAULT_REGION or the profile's region")
    return session


def aws_client(session: Any, service: str, *, attempts: int = ATTEMPTS) -> Any:
    """Returns a boto3 client that retries throttled calls."""
    from botocore.config import Config

    retries = {"mode": "standard", "total_max_attempts": attempts}
    return session.client(service, config=Config(connect_timeout=10, retries=retries))
