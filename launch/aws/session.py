"""boto3 as every command here uses it: the caller's own profile, credentials and region."""

from typing import Any

import boto3
from botocore.config import Config

from launch.request.launch_errors import NO_REGION, LaunchError


def open_session(region: str | None) -> Any:
    """A boto3 session; raises LaunchError where neither the config nor boto3 knows a region."""
    session = boto3.Session(region_name=region)
    if not session.region_name:
        raise LaunchError(NO_REGION)
    return session


def client(session: Any, service: str, **options: Any) -> Any:
    """A client that tries again by itself when AWS asks for fewer calls."""
    config = Config(
        retries={"mode": "standard", "total_max_attempts": 6},
        connect_timeout=10,
        read_timeout=60,
        max_pool_connections=32,
    )
    return session.client(service, config=config, **options)


def split_s3(uri: str, key: str) -> tuple[str, str]:
    """Bucket and key of `s3://bucket/key`; raises LaunchError naming `key` for anything else."""
    scheme, _, rest = uri.partition("://")
    bucket, _, path = rest.partition("/")
    if scheme != "s3" or not bucket:
        raise LaunchError(f"{key}={uri}: expected s3://bucket/prefix")
    return bucket, path
