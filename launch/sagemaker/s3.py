"""S3: URIs, the objects below a prefix, and your own code for a job."""

import io
import sys
from collections.abc import Mapping
from typing import Any

from entry_point.contract.program import UserError
from launch.own_code import OwnCode
from launch.sagemaker.aws import aws_client

PARALLEL = 16


def split_s3(uri: str, key: str) -> tuple[str, str]:
    """Bucket and key of `s3://bucket/key`; raises UserError naming the setting `key`."""
    scheme, _, rest = uri.partition("://")
    bucket, _, path = rest.partition("/")
    if scheme != "s3" or not bucket:
        raise UserError(f"{key}={uri}: must be s3://bucket/prefix")
    return bucket, path


def split_prefix(uri: str, key: str) -> tuple[str, str]:
    """As `split_s3`; the prefix ends in `/`, or is empty for the whole bucket."""
    bucket, path = split_s3(uri, key)
    return bucket, f"{path.rstrip('/')}/".lstrip("/")


def list_objects(s3: Any, bucket: str, prefix: str) -> dict[str, dict[str, Any]]:
    """S3's description of each object below the prefix, by its key relative to the prefix."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    objects = pages.search("Contents || `[]`")
    return {item["Key"].removeprefix(prefix): item for item in objects}


def upload(s3: Any, bucket: str, contents: Mapping[str, bytes]) -> None:
    """Upload all bytes under their keys. AWS errors pass through.

    Every request has a checksum, which S3 verifies.
    """
    from boto3.s3.transfer import TransferConfig, create_transfer_manager

    # If an exception (Ctrl-C included) leaves this block, the manager aborts all transfers.
    with create_transfer_manager(s3, TransferConfig(max_concurrency=PARALLEL)) as manager:
        futures = [
            manager.upload(io.BytesIO(content), bucket, key) for key, content in contents.items()
        ]
        for future in futures:
            future.result()


def send_code(code: OwnCode, uri: str, session: Any) -> None:
    """Upload the files of your own code that the prefix lacks, and say so.

    The prefix has the content's hash in its name: what it has is not sent again. The job compares
    the hash, too.
    """
    s3 = aws_client(session, "s3")
    bucket, prefix = split_prefix(uri, "job.output")
    there = list_objects(s3, bucket, prefix)
    missing = {
        prefix + name: content
        for name, content in code.files.items()
        if name not in there or there[name]["Size"] != len(content)
    }
    upload(s3, bucket, missing)
    done = f"sent {len(missing)} of them to" if missing else "already in"
    sys.stdout.write(f"{code.describe()}, {done} {uri}\n")
