"""Uploading your own code for a job, once per content."""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from launch.aws.s3.s3_bucket import object_sizes, split_prefix
from launch.own_code import OwnCode
from launch.sagemaker.aws import aws_client

PARALLEL = 16


def send_code(code: OwnCode, uri: str, session: Any) -> None:
    """Upload the files that the prefix lacks, and say so.

    The prefix has the content's hash in its name: what it has is not sent again. The job compares
    the hash, too.
    """
    s3 = aws_client(session, "s3")
    bucket, prefix = split_prefix(uri, "job.output")
    there = object_sizes(s3, bucket, prefix)
    missing = [name for name, content in code.files.items() if there.get(name) != len(content)]

    def send(name: str) -> None:
        s3.put_object(Bucket=bucket, Key=prefix + name, Body=code.files[name])

    with ThreadPoolExecutor(PARALLEL) as pool:
        list(pool.map(send, missing))
    done = f"sent {len(missing)} of them to" if missing else "already in"
    sys.stdout.write(f"{code.describe()}, {done} {uri}\n")
