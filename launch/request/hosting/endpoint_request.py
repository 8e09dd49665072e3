"""The requests that create or update an endpoint, and their checks; makes no AWS call."""

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from launch.request.hosting.hosting_config import DeployConfig
from launch.request.hosting.trained_model import (
    TrainedModel,
    raise_problems,
    stamped,
    tag_list,
)
from launch.sagemaker.checks import input_shape, is_gpu
from launch.sagemaker.training_request import drop_empty

VARIANT = "AllTraffic"
# A queued request may have 1 GB, see docs/serving.md.
LARGE_BODIES = {
    "SERVE_OVERRIDES": "serve.max_payload_mb=1024 serve.body_memory_mb=2048 "
    "serve.read_timeout_s=300"
}
_GPU_AMI = re.compile(r".*-inference-gpu-(\d+)(?:-(\d+))?")


def build(
    model: TrainedModel,
    config: DeployConfig,
    tags: dict[str, str],
    now: datetime,
    *,
    exists: bool = False,
) -> dict[str, dict[str, Any]]:
    """Operation -> request, in the order in which to send them.

    `exists`: an endpoint of that name is there, and is updated.
    """
    name = config.name or model.job
    unique = stamped(name, now)
    environment = (LARGE_BODIES if config.async_output else {}) | config.environment
    requests = {
        "CreateModel": model.request(unique, environment, tags),
        "CreateEndpointConfig": drop_empty(
            {
                "EndpointConfigName": unique,
                "ProductionVariants": [
                    {"VariantName": VARIANT, "ModelName": unique, **_capacity(model, config)}
                ],
                "AsyncInferenceConfig": {
                    "OutputConfig": {"S3OutputPath": _prefix(config.async_output)}
                },
                "Tags": tag_list(tags),
            }
        ),
    }
    if exists:
        requests["UpdateEndpoint"] = {"EndpointName": name, "EndpointConfigName": unique}
    else:
        requests["CreateEndpoint"] = drop_empty(
            {"EndpointName": name, "EndpointConfigName": unique, "Tags": tag_list(tags)}
        )
    return requests


def check(
    requests: dict[str, dict[str, Any]],
    model: TrainedModel,
    config: DeployConfig,
    region: str | None,
) -> None:
    """Raise LaunchError with one line for each problem, which names the config key."""
    found = [*model.problems(config.instance_type, region)]
    found += _serverless_problems(model, config) if config.serverless else []
    output = config.async_output
    if output is not None and not output.startswith("s3://"):
        found.append(f"async={output}: must be s3://bucket/prefix")
    raise_problems(found, requests)


def _capacity(model: TrainedModel, config: DeployConfig) -> dict[str, Any]:
    if config.serverless:
        return {
            "ServerlessConfig": {
                "MemorySizeInMB": config.memory_mb,
                "MaxConcurrency": config.max_concurrency,
            }
        }
    instance_type = model.machines(config.instance_type)
    return {
        "InstanceType": instance_type,
        "InitialInstanceCount": config.instance_count,
        "ContainerStartupHealthCheckTimeoutInSeconds": config.startup_timeout_s,
        "InferenceAmiVersion": config.ami or (newest_ami() if is_gpu(instance_type) else None),
    }


def newest_ami() -> str:
    """The system image with the newest driver; that runs containers with any older CUDA."""
    variants = input_shape("CreateEndpointConfig").members["ProductionVariants"]
    names = variants.member.members["InferenceAmiVersion"].metadata["enum"]
    versions = {
        (int(match[1]), int(match[2] or 0)): name
        for name in names
        if (match := _GPU_AMI.fullmatch(name))
    }
    return str(versions[max(versions)])


def _serverless_problems(model: TrainedModel, config: DeployConfig) -> Iterator[str]:
    """Rules of serverless endpoints that the service's description does not hold."""
    if model.on_gpu:
        yield (
            f"serverless=true: has no GPUs and takes images up to 10 GB, but {model.job} trained "
            "on GPUs; drop it"
        )
    if config.memory_mb % 1024:
        yield f"memory_mb={config.memory_mb}: must be a multiple of 1024"
    refused = {
        f"instance_type={config.instance_type}": config.instance_type,
        f"instance_count={config.instance_count}": config.instance_count != 1,
        f"ami={config.ami}": config.ami,
        f"async={config.async_output}": config.async_output,
    }
    for setting, is_set in refused.items():
        if is_set:
            yield f"{setting}: not available with serverless=true; drop one of them"
    if any(model.vpc.values()) or model.is_isolated:
        yield (
            f"serverless=true: not available in a VPC or with network isolation, which {model.job} "
            "had; drop it"
        )


def _prefix(uri: str | None) -> str | None:
    return uri.rstrip("/") if uri else None
