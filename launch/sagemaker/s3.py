"""S3: what the prefixes of a job hold, and your own code for it."""

import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from entry_point.config.commands import typed
from entry_point.job.program import UserError
from launch import say
from launch.aws_cli import require_version_2
from launch.own_code import OwnCode

_FIRST = 100
"""Names that show what a prefix holds."""


def split_s3(uri: str, key: str) -> tuple[str, str]:
    """Bucket and key of `s3://bucket/key`; raises UserError naming the setting `key`."""
    scheme, _, rest = uri.partition("://")
    bucket, _, path = rest.partition("/")
    if scheme != "s3" or not bucket:
        raise UserError(f"{key}={uri}: must be s3://bucket/prefix")
    return bucket, path


def first_names(s3: Any, uri: str, key: str) -> list[str]:
    """Returns the names of the first objects below a prefix. Raises as `require_bucket`."""
    bucket, path = split_s3(uri, key)
    prefix = f"{path.rstrip('/')}/".lstrip("/")
    asked = {"Bucket": bucket, "Prefix": prefix, "MaxKeys": _FIRST}
    found = _ask(s3, lambda: s3.list_objects_v2(**asked), uri, key)
    return [item["Key"].removeprefix(prefix) for item in found.get("Contents", [])]


def require_bucket(s3: Any, uri: str, key: str) -> None:
    """Raise UserError, which names the setting `key`, if the bucket of a URI does not exist, or is
    in another region than the job."""
    bucket, _ = split_s3(uri, key)
    _ask(s3, lambda: s3.head_bucket(Bucket=bucket), uri, key)


def require_objects(s3: Any, uri: str, key: str) -> None:
    """Raise UserError as `require_bucket`, and for a prefix that holds no object or is
    ambiguous."""
    bucket, prefix = split_s3(uri, key)
    asked = {"Bucket": bucket, "Prefix": prefix, "Delimiter": "/", "MaxKeys": _FIRST}
    found = _ask(s3, lambda: s3.list_objects_v2(**asked), uri, key)
    names = [item["Key"] for item in found.get("Contents", [])]
    names += [item["Prefix"] for item in found.get("CommonPrefixes", [])]
    others = [name for name in names if name not in (prefix, f"{prefix}/")]
    is_folder = prefix.endswith("/") or not prefix
    # The console marks a folder with an empty object of its name.
    if "KeyCount" in found and not (others if is_folder else names):
        above = "".join(prefix.rstrip("/").rpartition("/")[:2])
        where = shlex.quote(f"s3://{bucket}/{above}")
        raise UserError(
            f"{key}={uri}: S3 has no object there; `aws s3 ls {where}` shows what it has"
        )
    if f"{prefix}/" in names and others and not is_folder:
        raise UserError(
            f"{key}={uri}: also means s3://{bucket}/{others[0]}; end it in /: "
            + typed({key: f"{uri}/"})
        )


def _ask(s3: Any, call: Callable[[], dict[str, Any]], uri: str, key: str) -> dict[str, Any]:
    """Returns S3's answer; an empty one if it refuses: what the caller may not see, the job's role
    may."""
    try:
        answer = call()
    except ClientError as error:
        if error.response["Error"]["Code"] in ("404", "NoSuchBucket"):
            raise UserError(f"{key}={uri}: there is no bucket {split_s3(uri, key)[0]}") from error
        return {}
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    region, other = s3.meta.region_name, headers.get("x-amz-bucket-region")
    if other and other != region:
        raise UserError(
            f"{key}={uri}: the bucket is in {other}, must be in the job's region, {region}; use "
            f"another bucket, or set AWS_DEFAULT_REGION={other}"
        )
    return answer


def send_code(code: OwnCode, uri: str, session: Any) -> None:
    """Upload your own code with the AWS CLI, as the session's user, and say so.

    The prefix has the content's hash in its name: what it has is not sent again.
    """
    require_version_2()
    keys = session.get_credentials().get_frozen_credentials()
    account = {
        "AWS_ACCESS_KEY_ID": keys.access_key,
        "AWS_SECRET_ACCESS_KEY": keys.secret_key,
        "AWS_SESSION_TOKEN": keys.token or "",
        "AWS_DEFAULT_REGION": session.region_name,
    }
    with tempfile.TemporaryDirectory() as folder:
        code.write(Path(folder))
        sync = ["aws", "s3", "sync", folder, uri, "--size-only"]
        done = subprocess.run([*sync, "--only-show-errors"], env={**os.environ, **account})
    if done.returncode:
        raise UserError(f"job.code=true: `aws s3 sync` to {uri} has failed; nothing was launched")
    say(f"{code.describe()}, in {uri}")
