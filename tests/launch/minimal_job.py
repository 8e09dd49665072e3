"""The smallest launch config, and requests built from it."""

from typing import Any

from entry_point.config.train_config import TrainConfig
from launch.sagemaker import training_request
from launch.sagemaker.config import LaunchConfig, load_launch_config
from launch.sagemaker.training import load_spec
from tests.launch.conftest import ACCOUNT, BUCKET, REGION, ROLE

IMAGE = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/training@sha256:{'0' * 64}"
MINIMAL = [f"job.role={ROLE}", f"job.output=s3://{BUCKET}/runs", f"target.image={IMAGE}"]
NAME = "image-training-260304-050607-089"


def built(*arguments: str, minimal: list[str] = MINIMAL) -> tuple[dict[str, Any], LaunchConfig]:
    """The unchecked request for the overrides, and its config."""
    config, overrides = load_launch_config([*minimal, *arguments], TrainConfig)
    return training_request.build(config, overrides, config.job.name or NAME), config


def checked(*arguments: str, minimal: list[str] = MINIMAL) -> dict[str, Any]:
    """The checked request, in the tests' region; raises UserError."""
    spec = load_spec([*minimal, *arguments])
    spec.require_valid(REGION)
    return spec.request(spec.config.job.name or NAME)
