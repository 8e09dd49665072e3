"""The CreateProcessingJob request that packs a dataset, and its checks; makes no AWS call.

Each host packs its share of the source's objects and writes shards and one part of the index below
the same S3 prefix; `launch.aws.packing_merge` merges the parts.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from launch.request import config_keys
from launch.request.image_checks import registry_problems
from launch.request.launch_config import LaunchConfig
from launch.request.launch_errors import LaunchError
from launch.request.training_request import drop_empty

ROOT = "/opt/ml/processing"
# Overrides that the launcher sets.
RESERVED = ("classes", "merge", "part")


def build(
    config: LaunchConfig, source: str, output: str, overrides: Sequence[str], name: str
) -> dict[str, Any]:
    """The request for one Processing job that packs `source` into `output`.

    Both are S3 prefixes without a slash at the end. `overrides` are those of configs/optimize.yaml.
    """
    target, job = config.target, config.job
    classes = f"{ROOT}/classes"
    request: dict[str, Any] = {
        "ProcessingJobName": name,
        "ProcessingInputs": [
            _input("source", f"{source}/", f"{ROOT}/input", "ShardedByS3Key"),
            _input("classes", classes_uri(output), classes, "FullyReplicated"),
        ],
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
        "AppSpecification": {
            "ImageUri": target.image,
            "ContainerArguments": ["optimize", *overrides, f"classes={classes}/classes.txt"],
        },
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


def check(
    request: dict[str, Any], config: LaunchConfig, overrides: Sequence[str], region: str | None
) -> None:
    """Raise LaunchError with one line for each problem, which names the config key."""
    found = config_keys.refusals(request, "CreateProcessingJob", config)
    found += _problems(request, config, overrides)
    found += registry_problems(config.target, region)
    if found:
        # Both the service model and registry_problems report a missing image.
        raise LaunchError(*dict.fromkeys(found))


def classes_uri(output: str) -> str:
    """The list of all class names; the objects of one host may be of some classes only."""
    return f"{output}/classes.txt"


def _input(name: str, uri: str, path: str, distribution: str) -> dict[str, Any]:
    return {
        "InputName": name,
        "S3Input": {
            "S3Uri": uri,
            "LocalPath": path,
            "S3DataType": "S3Prefix",
            "S3InputMode": "File",
            "S3DataDistributionType": distribution,
        },
    }


def _problems(
    request: dict[str, Any], config: LaunchConfig, overrides: Sequence[str]
) -> Iterator[str]:
    target = config.target
    source = request["ProcessingInputs"][0]["S3Input"]["S3Uri"]
    output = request["ProcessingOutputConfig"]["Outputs"][0]["S3Output"]["S3Uri"]
    if f"{output}/".startswith(source):
        yield f"output={output}: must not be inside source={source}; choose another prefix"
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
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        if key in RESERVED:
            yield f"{override}: set by the launcher; drop it"
        if key == "output_format" and value.strip("'\"") in ("folder", "index"):
            yield f"{override}: must be shards in a Processing job; drop it"
