"""The requests of a batch transform, and their checks; makes no AWS call."""

from datetime import datetime
from typing import Any

from launch.request.hosting.hosting_config import TransformConfig
from launch.request.hosting.trained_model import (
    TrainedModel,
    raise_problems,
    stamped,
    tag_list,
)
from launch.sagemaker.training_request import drop_empty

MOST_MB = 100
"""The service's limit for MaxPayloadInMB x MaxConcurrentTransforms."""


def build(
    model: TrainedModel, config: TransformConfig, tags: dict[str, str], now: datetime
) -> dict[str, dict[str, Any]]:
    """Operation -> request, in the order in which to send them.

    The container gets one image at a time; the service writes each answer beside its key.
    """
    name = config.name or stamped(model.job, now)
    transform = {
        "TransformJobName": name,
        "ModelName": name,
        "MaxConcurrentTransforms": config.max_concurrent,
        "MaxPayloadInMB": config.max_payload_mb,
        "BatchStrategy": "SingleRecord",
        "TransformInput": {
            "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": config.input}},
            "ContentType": "application/x-image",
            "SplitType": "None",
        },
        "TransformOutput": {
            "S3OutputPath": config.output.rstrip("/"),
            "Accept": config.accept,
            "AssembleWith": "None",
        },
        "TransformResources": {
            "InstanceType": model.machines(config.instance_type),
            "InstanceCount": config.instance_count,
        },
        "Tags": tag_list(tags),
    }
    return {
        "CreateModel": model.request(name, config.environment, tags),
        "CreateTransformJob": drop_empty(transform),
    }


def check(
    requests: dict[str, dict[str, Any]],
    model: TrainedModel,
    config: TransformConfig,
    region: str | None,
) -> None:
    """Raise LaunchError with one line for each problem, which names the config key."""
    found = [*model.problems(config.instance_type, region)]
    for key in ("input", "output"):
        uri = getattr(config, key)
        if not uri.startswith("s3://"):
            found.append(f"{key}={uri}: must be s3://bucket/prefix")
    at_once = config.max_concurrent or 1
    if config.max_payload_mb * at_once > MOST_MB:
        found.append(
            f"max_payload_mb={config.max_payload_mb}: must be at most {MOST_MB // at_once}, as all "
            f"requests at a time may have {MOST_MB} MB together"
        )
    if f"{config.output.rstrip('/')}/".startswith(f"{config.input.rstrip('/')}/"):
        found.append(f"output={config.output}: must not be inside input={config.input}")
    raise_problems(found, requests)
