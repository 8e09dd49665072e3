"""S3: URIs, the objects below a prefix, and your own code for a job."""

import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from botocore.exceptions import ClientError

from entry_point.job.program import UserError
from launch.own_code import OwnCode
from launch.sagemaker.aws import aws_client

_FIRST = 100
"""Names that show what a prefix holds."""
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


def require_region(s3: Any, answer: dict[str, Any], setting: str) -> None:
    """Raise UserError if S3 answers for a bucket of another region than the job's."""
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    region, other = s3.meta.region_name, headers.get("x-amz-bucket-region")
    if other and other != region:
        raise UserError(
            f"{setting}: the bucket is in {other}, must be in the job's region, {region}; use "
            f"another bucket, or set AWS_DEFAULT_REGION={other}"
        )


def require_objects(s3: Any, places: Mapping[str, str]) -> None:
    """Raise UserError for an S3 prefix, by its setting, that holds no object or is ambiguous.

    What the caller may not list, the job's role may.
    """
    for key, uri in places.items():
        bucket, prefix = split_s3(uri, key)
        try:
            found = s3.list_objects_v2(Bucket=bucket, Prefix=prefix, Delimiter="/", MaxKeys=_FIRST)
        except ClientError as error:
            if error.response["Error"]["Code"] == "NoSuchBucket":
                raise UserError(f"{key}={uri}: there is no bucket {bucket}") from error
            continue
        require_region(s3, found, f"{key}={uri}")
        names = [item["Key"] for item in found.get("Contents", [])]
        names += [item["Prefix"] for item in found.get("CommonPrefixes", [])]
        others = [name for name in names if name not in (prefix, f"{prefix}/")]
        is_folder = prefix.endswith("/") or not prefix
        # The console marks a folder with an empty object of its name.
        if "KeyCount" in found and not (others if is_folder else names):
            raise UserError(f"{key}={uri}: S3 has no object there; `aws s3 ls {uri}` lists them")
        if f"{prefix}/" in names and others and not is_folder:
            raise UserError(
                f"{key}={uri}: also means s3://{bucket}/{others[0]}; end it in /: {key}={uri}/"
            )


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
