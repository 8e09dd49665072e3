"""A data set's packing as one complete CreateProcessingJob request: pure, without AWS.

Each host gets its share of the source's objects, packs it, and leaves shards and a part of the
index below the same S3 prefix; `launch.aws.packing_merge` makes one index of the parts.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from launch.request import config_keys
from launch.request.checks import network_rules
from launch.request.image_rules import registry_rules
from launch.request.launch_config import LaunchConfig
from launch.request.launch_errors import LaunchError
from launch.request.training_request import without_nothing

ROOT = "/opt/ml/processing"
# Set by the launcher; a value of one's own would break what it does with the parts.
RESERVED = ("classes", "merge", "part")


def build(
    config: LaunchConfig, source: str, output: str, overrides: Sequence[str], name: str
) -> dict[str, Any]:
    """The request for one Processing job that packs `source` into `output`, both S3 prefixes.

    `overrides` are those of configs/optimize.yaml. Checked by `check`.
    """
    target, job = config.target, config.job
    classes = f"{ROOT}/classes"
    request = {
        "ProcessingJobName": name,
        "ProcessingInputs": [
            _input("source", f"{output_root(source)}/", f"{ROOT}/input", "ShardedByS3Key"),
            _input("classes", classes_uri(output), classes, "FullyReplicated"),
        ],
        "ProcessingOutputConfig": {
            "Outputs": [
                {
                    "OutputName": "parts",
                    "S3Output": {
                        "S3Uri": output_root(output),
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
    pruned = without_nothing(request)
    assert isinstance(pruned, dict)
    return pruned


def check(
    request: dict[str, Any], config: LaunchConfig, overrides: Sequence[str], region: str | None
) -> None:
    """Raise LaunchError with one line for each thing wrong, naming the config key."""
    found = config_keys.refusals(request, "CreateProcessingJob", config)
    found += _rules(request, config, overrides)
    found += [*registry_rules(config.target, region), *network_rules(config)]
    if found:
        # A missing image is told by the service's description and by the rules of images.
        raise LaunchError("\n".join(dict.fromkeys(found)))


def output_root(uri: str) -> str:
    """The prefix without a slash at its end."""
    return uri.rstrip("/")


def classes_uri(output: str) -> str:
    """Where the job finds the names of all classes, of which a host may see only some."""
    return f"{output_root(output)}/classes.txt"


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


def _rules(
    request: dict[str, Any], config: LaunchConfig, overrides: Sequence[str]
) -> Iterator[str]:
    target = config.target
    source = request["ProcessingInputs"][0]["S3Input"]["S3Uri"]
    output = request["ProcessingOutputConfig"]["Outputs"][0]["S3Output"]["S3Uri"]
    if f"{output}/".startswith(source):
        yield f"output={output}: lies within source={source}; choose another prefix"
    if target.spot:
        yield "target.spot=true: Processing has no spot machines; drop it"
    if target.instance_groups:
        yield "target.instance_groups: a Processing job has one kind of machine; drop it"
    if target.keep_alive_s:
        yield f"target.keep_alive_s={target.keep_alive_s}: Processing has no warm pool; drop it"
    if config.resume_from:
        yield f"resume_from={config.resume_from}: only training jobs are resumed"
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        if key in RESERVED:
            yield f"{override}: the launcher sets {key} itself"
        if (key, value.strip("'\"")) == ("output_format", "folder"):
            yield f"{override}: a job of several hosts writes shards"
