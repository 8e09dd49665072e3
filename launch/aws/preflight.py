"""Questions to AWS before a job is paid for: do its role and its buckets exist.

What the caller may not ask passes: the job's role may have rights that the caller has not.
"""

from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError, HTTPClientError

from launch.aws.aws_errors import is_denied
from launch.aws.s3 import split_s3
from launch.aws.session import aws_client
from launch.request.image_checks import ECR_IMAGE
from launch.request.launch_errors import LaunchError


def require_role(arn: str, session: Any) -> None:
    """Raise LaunchError if IAM knows no such role, or SageMaker may not assume it."""
    name = arn.rpartition("/")[2]
    try:
        role = aws_client(session, "iam", attempts=1).get_role(RoleName=name)["Role"]
    except HTTPClientError:  # a private network may have no way to IAM
        return
    except ClientError as error:
        if error.response["Error"]["Code"] == "NoSuchEntity":
            raise LaunchError(
                f"job.role={arn}: no such role in this account; `make setup-aws` creates one"
            ) from error
        if not is_denied(error):
            raise
        return
    if role["Arn"].split(":")[4] != arn.split(":")[4]:
        raise LaunchError(
            f"job.role={arn}: must be a role of your own account, {role['Arn'].split(':')[4]}"
        )
    if "sagemaker.amazonaws.com" not in str(role["AssumeRolePolicyDocument"]):
        raise LaunchError(
            f"job.role={arn}: its trust policy must name sagemaker.amazonaws.com; `make setup-aws` "
            "creates such a role"
        )


def other_account(role: str, image: str) -> str | None:
    """A warning if the role and the image are in different accounts; None if they are not."""
    match = ECR_IMAGE.fullmatch(image)
    account = role.split(":")[4]
    if not match or match["account"] == account:
        return None
    return (
        f"target.image={image}: is in account {match['account']}, job.role in {account}; the "
        "repository's policy must let the role pull it"
    )


def require_buckets(prefixes: Mapping[str, str], session: Any) -> None:
    """Raise LaunchError if a bucket does not exist; `prefixes` are config key -> S3 URI."""
    s3 = aws_client(session, "s3")
    found: dict[str, bool] = {}
    for key, uri in prefixes.items():
        if not uri.startswith("s3://"):
            continue
        bucket, _ = split_s3(uri, key)
        if bucket not in found:
            found[bucket] = _exists(s3, bucket)
        if not found[bucket]:
            raise LaunchError(f"{key}={uri}: there is no bucket {bucket}")


def _exists(s3: Any, bucket: str) -> bool:
    try:
        s3.head_bucket(Bucket=bucket)
    except ClientError as error:
        # 403: another account's, or the caller has no access; 301: in another region.
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        if status not in (301, 403, 404):
            raise
        return bool(status != 404)
    return True
