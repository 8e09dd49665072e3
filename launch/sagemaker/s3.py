"""S3: URIs, the objects below a prefix, and your own code for a job."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from entry_point.job.program import UserError
from launch.own_code import OwnCode
from launch.sagemaker.aws import aws_client

PARALLEL = 10  # as many connections as a client keeps


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


def list_objects(s3: Any, bucket: str, prefix: str) -> Iterator[str]:
    """Returns the keys of the objects below the prefix, relative to it."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return (item["Key"].removeprefix(prefix) for item in pages.search("Contents || `[]`"))


def send_code(code: OwnCode, uri: str, session: Any) -> None:
    """Upload the files of your own code that the prefix lacks, and say so.

    The prefix has the content's hash in its name: what it has is not sent again. The job compares
    the hash, too.
    """
    s3 = aws_client(session, "s3")
    bucket, prefix = split_prefix(uri, "job.output")
    missing = code.files.keys() - set(list_objects(s3, bucket, prefix))

    def send(name: str) -> None:
        s3.put_object(Bucket=bucket, Key=prefix + name, Body=code.files[name])

    with ThreadPoolExecutor(PARALLEL) as threads:
        list(threads.map(send, missing))  # raises what a thread raises
    done = f"sent {len(missing)} of them to" if missing else "already in"
    sys.stdout.write(f"{code.describe()}, {done} {uri}\n")
