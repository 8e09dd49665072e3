"""boto3 sessions and clients, with the user's own profile, credentials and region."""

import json
import os
import sys
from typing import Any

from launch.aws.aws_errors import NO_REGION
from launch.request.launch_errors import LaunchError


def is_dry_run() -> bool:
    """Whether `make ... DRY_RUN=1` asks to print what would be sent."""
    return os.environ.get("DRY_RUN", "") not in ("", "0")


def print_request(request: dict[str, Any]) -> None:
    """What a dry run prints; it needs neither credentials nor a network."""
    sys.stdout.write(json.dumps(request, indent=2, ensure_ascii=False) + "\n")


def open_session(region: str | None) -> Any:
    """A boto3 session; raises LaunchError if neither `region` nor boto3 names a region."""
    # Imported here because a dry run does not need it and it takes most of the start-up time.
    import boto3

    session = boto3.Session(region_name=region)
    if not session.region_name:
        raise LaunchError(NO_REGION)
    return session


def aws_client(session: Any, service: str, *, attempts: int = 6, **options: Any) -> Any:
    """A boto3 client that retries throttled calls."""
    from botocore.config import Config

    config = Config(
        retries={"mode": "standard", "total_max_attempts": attempts},
        connect_timeout=10,
        read_timeout=60,
        max_pool_connections=32,
    )
    return session.client(service, config=config, **options)
