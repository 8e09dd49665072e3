"""The CreateProcessingJob request of a job that packs or predicts; makes no AWS call."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from launch.request import config_keys
from launch.request.image_checks import registry_problems
from launch.request.launch_config import LaunchConfig
from launch.request.launch_errors import LaunchError
from launch.request.training_request import drop_empty

ROOT = "/opt/ml/processing"
SHARDED, REPLICATED = "ShardedByS3Key", "FullyReplicated"


def build(
    config: LaunchConfig,
    name: str,
    inputs: Sequence[dict[str, Any]],
    output: str,
    arguments: Sequence[str],
) -> dict[str, Any]:
    """The request for one job that runs the container with these arguments.

    `output` is the S3 prefix, without a slash at the end, that gets the files of all hosts.
    """
    target, job = config.target, config.job
    request: dict[str, Any] = {
        "ProcessingJobName": name,
        "ProcessingInputs": list(inputs),
        "ProcessingOutputConfig": {
            "Outputs": [
                {
                    "OutputName": "parts",
                    "S3Output": {
                        "S3Uri": output,
                        "LocalPath": f"{ROOT}/output",
                        "S3UploadMode": "EndOfJob",
                    },
                }
            ],
            "KmsKeyId": job.output_kms_key,
        },
        "ProcessingResources": {
            "ClusterConfig": {
                "InstanceType": target.instance_type,
                "InstanceCount": target.instance_count,
                "VolumeSizeInGB": target.volume_gb,
                "VolumeKmsKeyId": job.volume_kms_key,
            }
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": target.max_runtime_s},
        "AppSpecification": {"ImageUri": target.image, "ContainerArguments": list(arguments)},
        "Environment": job.environment,
        "NetworkConfig": {
            "EnableNetworkIsolation": job.network_isolation or None,
            "EnableInterContainerTrafficEncryption": job.encrypt_traffic or None,
            "VpcConfig": {"SecurityGroupIds": job.security_groups, "Subnets": job.subnets},
        },
        "RoleArn": job.role,
        "Tags": [{"Key": key, "Value": value} for key, value in job.tags.items()],
    }
    return drop_empty(request)


def s3_input(name: str, uri: str, distribution: str) -> dict[str, Any]:
    """What each host gets in ROOT/NAME: a share of the objects, or all."""
    return {
        "InputName": name,
        "S3Input": {
            "S3Uri": uri,
            "LocalPath": f"{ROOT}/{name}",
            "S3DataType": "S3Prefix",
            "S3InputMode": "File",
            "S3DataDistributionType": distribution,
        },
    }


def check(
    request: dict[str, Any], config: LaunchConfig, found: Iterable[str], region: str | None
) -> None:
    """Raise LaunchError with one line for each problem, which names the config key.

    `found` are the problems that the caller has found.
    """
    lines = config_keys.refusals(request, "CreateProcessingJob", config)
    lines += [*_unavailable(config), *found]
    lines += registry_problems(config.target, region)
    if lines:
        # Both the service model and registry_problems report a missing image.
        raise LaunchError(*dict.fromkeys(lines))


def reserved(overrides: Sequence[str], keys: Sequence[str]) -> Iterator[str]:
    """The problems of overrides of keys that the launcher sets."""
    for override in overrides:
        if override.lstrip("+").partition("=")[0] in keys:
            yield f"{override}: set by the launcher; drop it"


def _unavailable(config: LaunchConfig) -> Iterator[str]:
    target = config.target
    if target.spot:
        yield "target.spot=true: not available for Processing jobs; drop it"
    if target.instance_groups:
        yield "target.instance_groups: not available for Processing jobs; drop it"
    if target.keep_alive_s:
        yield (
            f"target.keep_alive_s={target.keep_alive_s}: not available for Processing jobs; drop it"
        )
    if config.job.code:
        yield "job.code=true: only for training jobs; drop it"
    if config.resume_from:
        yield f"resume_from={config.resume_from}: only for training jobs; drop it"
