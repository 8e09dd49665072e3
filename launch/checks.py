"""All that can be known to be wrong with a request before it is sent, by config key."""

import re
from collections.abc import Iterator
from typing import Any

from launch import service_model
from launch.config import LaunchConfig, Target
from launch.errors import LaunchError

OPERATION = "CreateTrainingJob"

# ACCOUNT.dkr.ecr[-fips].REGION.amazonaws.com[.cn]/REPOSITORY[:TAG|@DIGEST]
ECR_IMAGE = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/"
    r"(?P<repository>[a-z0-9._/-]+)(?::(?P<tag>[\w.-]+))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_GPU_FAMILY = re.compile(r"ml\.(p|g)\d")
_OTHER_ACCELERATOR = re.compile(r"ml\.(trn|inf)\d")
# In a tag: what builds name their images after.
_DEVICE_IN_TAG = {"gpu": re.compile(r"(^|[-_.])(gpu|cu\d+)"), "cpu": re.compile(r"(^|[-_.])cpu")}

# Where a member of the request comes from; the first that matches, `\1` its name or number.
_CONFIG_KEYS = [
    (r"TrainingJobName", "job.name"),
    (r"AlgorithmSpecification\.TrainingImage", "target.image"),
    (r"RoleArn", "job.role"),
    (r"InputDataConfig", "job.channels"),
    (r"OutputDataConfig(?:\.S3OutputPath)?", "job.output"),
    (r"OutputDataConfig\.KmsKeyId", "job.output_kms_key"),
    (r"ResourceConfig\.InstanceType", "target.instance_type"),
    (r"ResourceConfig\.InstanceCount", "target.instance_count"),
    (
        r"ResourceConfig\.InstanceGroups\[(\d+)\]\.InstanceGroupName",
        r"target.instance_groups[\1].name",
    ),
    (
        r"ResourceConfig\.InstanceGroups\[(\d+)\]\.InstanceType",
        r"target.instance_groups[\1].instance_type",
    ),
    (
        r"ResourceConfig\.InstanceGroups\[(\d+)\]\.InstanceCount",
        r"target.instance_groups[\1].instance_count",
    ),
    (r"ResourceConfig\.InstanceGroups", "target.instance_groups"),
    (r"ResourceConfig\.VolumeSizeInGB", "target.volume_gb"),
    (r"ResourceConfig\.VolumeKmsKeyId", "job.volume_kms_key"),
    (r"ResourceConfig\.KeepAlivePeriodInSeconds", "target.keep_alive_s"),
    (r"StoppingCondition\.MaxRuntimeInSeconds", "target.max_runtime_s"),
    (r"StoppingCondition\.MaxWaitTimeInSeconds", "target.max_wait_s"),
    (r"CheckpointConfig\.S3Uri", "job.checkpoints"),
    (r"TensorBoardOutputConfig\.S3OutputPath", "job.output"),
    (r"HyperParameters.*", "the job's overrides, cut into hyperparameters:"),
    (r"Environment\.(.*)", r"job.environment.\1"),
    (r"Environment", "job.environment"),
    (r"VpcConfig\.SecurityGroupIds(.*)", r"job.security_groups\1"),
    (r"VpcConfig\.Subnets(.*)", r"job.subnets\1"),
    (r"RetryStrategy\.MaximumRetryAttempts", "job.retries"),
    (r"Tags\[\d+\].*|Tags", "job.tags"),
]
# What to do about a setting that has no default.
_HINTS = {
    "target.image": "`make push` prints its URI",
    "job.role": "`make setup-aws` creates one",
    "job.output": "name an S3 prefix, s3://bucket/prefix",
}
_CHANNEL_FIELDS = {
    "ChannelName": "",
    "DataSource.S3DataSource.S3DataType": ".type",
    "DataSource.S3DataSource.S3Uri": ".s3",
    "DataSource.S3DataSource.S3DataDistributionType": ".distribution",
    "DataSource.S3DataSource.InstanceGroupNames": ".instance_groups",
    "InputMode": ".mode",
}


def check(request: dict[str, Any], config: LaunchConfig, region: str | None) -> None:
    """Raise LaunchError with one line for each thing wrong, naming the config key.

    `region` is the one the job is to run in, None where it is not known yet.
    """
    found = [_line(problem, config) for problem in service_model.problems(request, OPERATION)]
    found += _rules(request, config, region)
    if found:
        raise LaunchError("\n".join(found))


def config_key(path: str, config: LaunchConfig) -> str:
    """The config key behind the member of a request at `path`."""
    if path == "TrainingJobName" and not config.job.name:
        return "job.base_name"
    channel = re.fullmatch(r"InputDataConfig\[(\d+)\]\.?(.*)", path)
    if channel:
        name = list(config.job.channels)[int(channel[1])]
        member = re.sub(r"\[\d+\]$", "", channel[2])
        return f"job.channels.{name}{_CHANNEL_FIELDS.get(member, '')}"
    for pattern, key in _CONFIG_KEYS:
        if match := re.fullmatch(pattern, path):
            return match.expand(key)
    return path


def is_gpu(instance_type: str) -> bool:
    """Whether instances of that type carry NVIDIA GPUs."""
    return bool(_GPU_FAMILY.match(instance_type))


def _line(problem: service_model.Problem, config: LaunchConfig) -> str:
    key = config_key(problem.path, config)
    value = config.job.base_name if key == "job.base_name" else problem.value
    hint = f"; {_HINTS[key]}" if key in _HINTS and problem.value is None else ""
    return f"{key}{_shown(value)} {problem.reason}{hint}"


def _shown(value: Any) -> str:
    if value is None:
        return ""
    text = str(value)
    return f"={text if len(text) <= 200 else text[:200] + '...'}"


def _rules(request: dict[str, Any], config: LaunchConfig, region: str | None) -> Iterator[str]:
    yield from _spot_rules(request, config)
    yield from _resume_rules(config)
    yield from _channel_rules(config)
    yield from _image_rules(config.target, region)
    yield from _network_rules(config)
    if config.target.instance_groups and config.target.keep_alive_s:
        yield "target.keep_alive_s: a warm pool keeps one kind of machine; drop instance_groups"
    if config.target.instance_count == 0 and not config.target.instance_groups:
        yield "target.instance_count=0: a job needs at least one machine"


def _spot_rules(request: dict[str, Any], config: LaunchConfig) -> Iterator[str]:
    target = config.target
    if not target.spot:
        if target.max_wait_s is not None:
            yield f"target.max_wait_s={target.max_wait_s}: only spot jobs wait; set target.spot"
        return
    if target.max_wait_s is not None and target.max_wait_s < target.max_runtime_s:
        yield (
            f"target.max_wait_s={target.max_wait_s}: it includes the running time, so it must be "
            f">= target.max_runtime_s={target.max_runtime_s}"
        )
    if "CheckpointConfig" not in request and config.job.output:
        yield (
            f"job.checkpoints={config.job.checkpoints}: a spot job without checkpoints starts from "
            "nothing after each interruption; use job.checkpoints=auto"
        )
    if target.keep_alive_s:
        yield (
            f"target.keep_alive_s={target.keep_alive_s}: spot machines have no warm pool; drop it "
            "or target.spot"
        )


def _resume_rules(config: LaunchConfig) -> Iterator[str]:
    if config.resume_from and config.job.checkpoints == "none":
        yield f"resume_from={config.resume_from}: it needs checkpoints; drop job.checkpoints=none"
    if config.resume_from and config.resume_from == config.job.name:
        yield (
            f"job.name={config.job.name}: the same as resume_from; a job's name is used once, "
            "leave job.name null"
        )


def _channel_rules(config: LaunchConfig) -> Iterator[str]:
    groups = {group.name for group in config.target.instance_groups}
    for name, channel in config.job.channels.items():
        key = f"job.channels.{name}"
        if channel.mode == "Pipe":
            yield f"{key}.mode=Pipe: the job reads files; use File or FastFile"
        if (channel.mode, channel.type) == ("FastFile", "S3Prefix") and channel.s3[-1:] != "/":
            yield f"{key}.s3={channel.s3}: FastFile takes whole folders; end the prefix in /"
        unknown = sorted(set(channel.instance_groups) - groups)
        if unknown:
            yield f"{key}.instance_groups={unknown}: no such name in target.instance_groups"
    shared = [bool(channel.instance_groups) for channel in config.job.channels.values()]
    if any(shared) and not all(shared):
        yield "job.channels: either every channel names its instance_groups or none does"


def _image_rules(target: Target, region: str | None) -> Iterator[str]:
    if target.device not in ("cpu", "gpu"):
        yield f"target.device={target.device}: must be cpu or gpu"
        return
    for key, instance_type in _instance_types(target):
        if _OTHER_ACCELERATOR.match(instance_type):
            yield f"{key}={instance_type}: its accelerators are not CUDA devices"
        elif is_gpu(instance_type) != (target.device == "gpu"):
            yield (
                f"{key}={instance_type}: an image for {target.device} (target.device) belongs on "
                f"{'a GPU' if target.device == 'gpu' else 'a CPU'} type"
            )
    if not target.image:
        yield f"target.image is missing; {_HINTS['target.image']}"
    else:
        yield from _image_uri_rules(target.image, target.device, region)


def _instance_types(target: Target) -> list[tuple[str, str]]:
    """Config key and instance type of each kind of machine."""
    if target.instance_groups:
        return [
            (f"target.instance_groups[{number}].instance_type", group.instance_type)
            for number, group in enumerate(target.instance_groups)
        ]
    return [("target.instance_type", target.instance_type)] if target.instance_type else []


def _image_uri_rules(image: str, device: str, region: str | None) -> Iterator[str]:
    match = ECR_IMAGE.fullmatch(image)
    if not match:
        yield (
            f"target.image={image}: SageMaker runs images from a private ECR repository, "
            "ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME@sha256:...; `make push` prints one"
        )
        return
    if region and match["region"] != region:
        yield (
            f"target.image={image}: it is in {match['region']}, the job runs in {region}; push it "
            "there or set job.region"
        )
    other = "gpu" if device == "cpu" else "cpu"
    if match["tag"] and _DEVICE_IN_TAG[other].search(match["tag"]):
        yield f"target.image={image}: its tag says {other}, target.device says {device}"


def _network_rules(config: LaunchConfig) -> Iterator[str]:
    job = config.job
    if bool(job.subnets) != bool(job.security_groups):
        missing, given = ("job.security_groups", "job.subnets")
        if not job.subnets:
            missing, given = given, missing
        yield f"{missing}: a VPC needs it beside {given}"
