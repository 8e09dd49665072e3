"""A bucket: its URIs, its objects, and creating it."""

from typing import Any

from botocore.exceptions import ClientError

from launch.command_line import LaunchError

BLOCK_PUBLIC_ACCESS = {
    "BlockPublicAcls": True,
    "IgnorePublicAcls": True,
    "BlockPublicPolicy": True,
    "RestrictPublicBuckets": True,
}
# S3 bills the parts of an aborted upload until they are deleted.
LIFECYCLE = {
    "Rules": [
        {
            "ID": "delete the parts of incomplete uploads",
            "Status": "Enabled",
            "Filter": {},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
        }
    ]
}


def split_s3(uri: str, key: str) -> tuple[str, str]:
    """Bucket and key of `s3://bucket/key`; raises LaunchError naming the setting `key`."""
    scheme, _, rest = uri.partition("://")
    bucket, _, path = rest.partition("/")
    if scheme != "s3" or not bucket:
        raise LaunchError(f"{key}={uri}: must be s3://bucket/prefix")
    return bucket, path


def split_prefix(uri: str, key: str) -> tuple[str, str]:
    """As `split_s3`; the prefix ends in `/`, or is empty for the whole bucket."""
    bucket, path = split_s3(uri, key)
    return bucket, f"{path.rstrip('/')}/".lstrip("/")


def object_sizes(s3: Any, bucket: str, prefix: str) -> dict[str, int]:
    """Bytes of each object below the prefix, by its key relative to the prefix."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    objects = pages.search("Contents || `[]`")
    return {item["Key"].removeprefix(prefix): item["Size"] for item in objects}


def ensure_bucket(s3: Any, name: str, region: str) -> str:
    """Create a private bucket, or check that the existing one is usable; returns what was done."""
    try:
        found = s3.head_bucket(Bucket=name)
    except ClientError as error:
        code = error.response["ResponseMetadata"]["HTTPStatusCode"]
        if code == 403:
            raise LaunchError(
                f"bucket={name}: belongs to another account, or you lack access; choose another"
            ) from error
        if code != 404:
            raise
        _create_bucket(s3, name, region)
        return f"created in {region}, private"
    where = found.get("BucketRegion") or region
    if where != region:
        raise LaunchError(f"bucket={name}: is in {where}, but jobs would run in {region}")
    return "exists, left unchanged"


def _create_bucket(s3: Any, name: str, region: str) -> None:
    # CreateBucket rejects us-east-1 as a LocationConstraint.
    place = {} if region == "us-east-1" else {"LocationConstraint": region}
    s3.create_bucket(Bucket=name, **({"CreateBucketConfiguration": place} if place else {}))
    s3.put_public_access_block(Bucket=name, PublicAccessBlockConfiguration=BLOCK_PUBLIC_ACCESS)
    s3.put_bucket_lifecycle_configuration(Bucket=name, LifecycleConfiguration=LIFECYCLE)
