"""A launch config as short as it can be, and what is built from it."""

from datetime import datetime, timezone
from typing import Any

from launch.request import checks
from launch.request import training_request as request
from launch.request.launch_config import LaunchConfig
from launch.request.launch_overrides import load_launch_config
from tests.launch.conftest import ACCOUNT, BUCKET, REGION, ROLE

IMAGE = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/training@sha256:{'0' * 64}"
LEAST = [f"job.role={ROLE}", f"job.output=s3://{BUCKET}/runs", f"target.image={IMAGE}"]
NOW = datetime(2026, 3, 4, 5, 6, 7, 89000, timezone.utc)


def built(*arguments: str, least: list[str] = LEAST) -> tuple[dict[str, Any], LaunchConfig]:
    """The request that the overrides ask for, unchecked, and the config behind it."""
    config, overrides = load_launch_config([*least, *arguments])
    return request.build(config, overrides, request.job_name(config.job, NOW)), config


def checked(*arguments: str, least: list[str] = LEAST) -> dict[str, Any]:
    """The same, checked for the tests' region; raises LaunchError."""
    found, config = built(*arguments, least=least)
    checks.check(found, config, REGION)
    return found
