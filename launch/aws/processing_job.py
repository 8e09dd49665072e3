"""What the launches of packing and prediction share: settings in S3, checks there, the job."""

import sys
from collections.abc import Sequence
from typing import Any

from launch.aws.s3 import split_prefix
from launch.aws.sagemaker_job import Job
from launch.aws.session import aws_client
from launch.request.launch_errors import LaunchError


def split_uris(
    overrides: Sequence[str], required: Sequence[str], optional: Sequence[str] = ()
) -> tuple[dict[str, str], list[str]]:
    """S3 URIs by key, without a slash at the end, and the other overrides. Raises LaunchError."""
    uris, others = dict.fromkeys(required, ""), []
    for override in overrides:
        key, _, value = override.partition("=")
        if key in (*required, *optional):
            uris[key] = value.strip("'\"").rstrip("/")
        else:
            others.append(override)
    for key, uri in uris.items():
        if not uri.startswith("s3://"):
            raise LaunchError(f"{key}={uri}: must be s3://bucket/prefix")
    return uris, others


def require_empty(s3: Any, key: str, uri: str, but: str = "") -> None:
    """Raise LaunchError, which names the setting `key`, if the prefix holds another object."""
    bucket, prefix = split_prefix(uri, key)
    found = s3.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=2).get("Contents", [])
    others = [item["Key"] for item in found if item["Key"] != f"{prefix}{but}"]
    if others:
        raise LaunchError(
            f"{key}={uri}: not empty, the first object is s3://{bucket}/{others[0]}; "
            "choose another prefix, or delete the objects"
        )


def create(request: dict[str, Any], session: Any, what: str) -> Job:
    """Send the request; `what` tells the user what the job does."""
    aws_client(session, "sagemaker").create_processing_job(**request)
    name: str = request["ProcessingJobName"]
    sys.stdout.write(f"job {name} created: {what}\n")
    return Job(session, name, "Processing")
