"""What goes wrong between the desk and AWS, as one line that says what to do."""

import re
from typing import Any

from botocore import exceptions

from entry_point.config.config_errors import ConfigError


class LaunchError(Exception):
    """A line for the person at the desk; nothing is gained by a traceback."""


NO_REGION = "no region: set AWS_DEFAULT_REGION, `region` in the profile, or, for a job, job.region"
_LOGIN = "run `aws sso login` or `aws configure`, or set AWS_PROFILE"

# (error code or its beginning, part of the message or "", what to do)
_REFUSALS: list[tuple[str, str, str]] = [
    ("ExpiredToken", "", f"the credentials have expired: {_LOGIN}"),
    ("RequestExpired", "", f"the credentials have expired, or the clock is wrong: {_LOGIN}"),
    ("UnrecognizedClient", "", f"AWS does not know these credentials: {_LOGIN}"),
    ("InvalidClientTokenId", "", f"AWS does not know these credentials: {_LOGIN}"),
    ("InvalidAccessKeyId", "", f"AWS does not know these credentials: {_LOGIN}"),
    ("SignatureDoesNotMatch", "", f"the secret key does not match the access key: {_LOGIN}"),
    (
        "ResourceLimitExceeded",
        "",
        "raise this quota in the Service Quotas console, or choose another target.instance_type, "
        "fewer instances, or target.spot=true, which has a quota of its own",
    ),
    ("ThrottlingException", "", "AWS asks for fewer calls: try again in a minute"),
    ("TooManyRequests", "", "AWS asks for fewer calls: try again in a minute"),
    ("SlowDown", "", "S3 asks for fewer calls: try again in a minute"),
    ("ResourceInUse", "", "the name is taken: choose another job.name, or leave it null"),
    ("ValidationException", "must be unique", "the name is taken: choose another job.name"),
    (
        "ValidationException",
        "ould not assume role",
        "SageMaker cannot assume job.role: its trust policy must name sagemaker.amazonaws.com, "
        "and you need iam:PassRole on it; `make setup-aws` creates such a role",
    ),
    (
        "ValidationException",
        "ecr",
        "SageMaker cannot read target.image: `make push` puts it into the registry, and job.role "
        "needs ecr:BatchGetImage on it",
    ),
    (
        "ValidationException",
        "instance type",
        "this region or account lacks that target.instance_type: choose another",
    ),
    ("BadDigest", "", "the data was damaged on the way: run the same command again"),
    ("403", "", "ask for permission to read the object, or use another profile with AWS_PROFILE"),
    ("AccessDenied", "", "ask for this permission, or use another profile with AWS_PROFILE"),
    ("NoSuchBucket", "", "`make setup-aws` creates the bucket"),
    ("NoSuchKey", "", "there is no such object"),
]


def explain(error: BaseException) -> str | None:
    """One line for an error of boto3, or None for one that is not about AWS or the request."""
    if isinstance(error, LaunchError | ConfigError):
        return str(error)
    if isinstance(error, exceptions.ClientError):
        return _refusal(error.response.get("Error", {}), error.operation_name)
    if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
        return f"no AWS credentials found: {_LOGIN}"
    if isinstance(error, exceptions.NoRegionError):
        return NO_REGION
    if isinstance(error, exceptions.ProfileNotFound):
        return f"{error}: `aws configure list-profiles` shows those there are"
    sign_in = (
        exceptions.SSOError,
        exceptions.TokenRetrievalError,
        exceptions.UnauthorizedSSOTokenError,
        exceptions.CredentialRetrievalError,
    )
    if isinstance(error, sign_in):
        return f"the sign-in has expired or failed ({_one_line(error)}): {_LOGIN}"
    if isinstance(error, exceptions.HTTPClientError | exceptions.ConnectionError):
        return f"AWS cannot be reached ({_one_line(error)}): check the network and the region"
    if isinstance(error, exceptions.BotoCoreError):
        return _one_line(error)
    return None


def _refusal(error: dict[str, Any], operation: str) -> str:
    code, message = str(error.get("Code", "")), _one_line(error.get("Message", ""))
    for prefix, part, advice in _REFUSALS:
        if code.startswith(prefix) and part.lower() in message.lower():
            return f"{operation} refused: {message} [{code}]; {advice}"
    return f"{operation} refused: {message} [{code}]"


def _one_line(text: object) -> str:
    return re.sub(r"\s+", " ", str(text)).strip()
