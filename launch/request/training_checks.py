"""Every check of a training request that needs no AWS call; messages name the config key."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from launch.request import config_keys
from launch.request.image_checks import machine_problems
from launch.request.launch_config import Channel, Job, LaunchConfig, Target
from launch.request.launch_errors import LaunchError

FILE_SYSTEMS = ("EFS", "FSxLustre")
_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_MLFLOW = re.compile(r"arn:aws[a-z-]*:sagemaker:[a-z0-9-]*:[0-9]{12}:mlflow-[a-zA-Z-]*/.+")
MAX_RUNTIME_S = 28 * 86400


def check(
    request: dict[str, Any], config: LaunchConfig, region: str | None, others: Sequence[str] = ()
) -> None:
    """Raise LaunchError with one line for each problem.

    `region` is the job's region, None if unknown. `others` are problems already found in the job's
    own overrides.
    """
    found = config_keys.refusals(request, "CreateTrainingJob", config)
    found += [*_problems(request, config, region), *others]
    if found:
        raise LaunchError(*found)


def _problems(request: dict[str, Any], config: LaunchConfig, region: str | None) -> Iterator[str]:
    yield from _spot_problems(request, config)
    yield from _resume_problems(config)
    yield from _channel_problems(config)
    yield from _bucket_problems(config)
    yield from machine_problems(config.target, region)
    yield from _capacity_problems(config.target, config.job)
    target, pool = config.target, f"target.keep_alive_s={config.target.keep_alive_s}"
    if target.keep_alive_s and target.instance_groups:
        yield f"{pool}: not available with instance groups; drop it or target.instance_groups"
    if target.keep_alive_s and target.spot:
        yield f"{pool}: not available for spot jobs; drop it or target.spot"
    if target.max_runtime_s > MAX_RUNTIME_S:
        yield (
            f"target.max_runtime_s={target.max_runtime_s}: must be at most {MAX_RUNTIME_S} "
            "(28 days), the largest quota of SageMaker"
        )
    if target.instance_count == 0 and not target.instance_groups:
        yield "target.instance_count=0: must be at least 1"


def _spot_problems(request: dict[str, Any], config: LaunchConfig) -> Iterator[str]:
    target = config.target
    wait = f"target.max_wait_s={target.max_wait_s}"
    if not target.spot:
        if target.max_wait_s is not None:
            yield f"{wait}: only for spot jobs; drop it or set target.spot=true"
        return
    if target.max_wait_s is not None and target.max_wait_s < target.max_runtime_s:
        runtime = f"target.max_runtime_s={target.max_runtime_s}"
        yield f"{wait}: includes the run time, so it must be at least {runtime}"
    if "CheckpointConfig" not in request and config.job.output:
        yield (
            f"job.checkpoints={config.job.checkpoints}: without checkpoints, a spot job restarts "
            "from scratch after each interruption; use job.checkpoints=auto"
        )


def _resume_problems(config: LaunchConfig) -> Iterator[str]:
    if config.resume_from and config.job.checkpoints == "none":
        yield f"resume_from={config.resume_from}: needs checkpoints; drop job.checkpoints=none"
    if config.resume_from and config.resume_from == config.job.name:
        yield (
            f"job.name={config.job.name}: must differ from resume_from, as job names are unique; "
            "leave job.name null"
        )


def s3_prefixes(job: Job) -> dict[str, str]:
    """Config key -> where it points; checkpoints may also be `auto` or `none`."""
    prefixes = {
        f"job.channels.{name}.s3": channel.s3 or "" for name, channel in job.channels.items()
    }
    return {**prefixes, "job.output": job.output or "", "job.checkpoints": job.checkpoints}


def _bucket_problems(config: LaunchConfig) -> Iterator[str]:
    for key, uri in s3_prefixes(config.job).items():
        bucket = re.match("s3://([^/]+)", uri)
        if bucket and not _BUCKET_NAME.fullmatch(bucket[1]):
            yield (
                f"{key}={uri}: the bucket's name must be 3 to 63 lowercase letters, digits, dots "
                "and hyphens"
            )


def _source_problems(key: str, channel: Channel, job: Job) -> Iterator[str]:
    if bool(channel.s3) == bool(channel.file_system):
        yield f"{key}: must have s3 or file_system, and not both"
    elif channel.file_system and channel.type not in FILE_SYSTEMS:
        yield f"{key}.type={channel.type}: must be {' or '.join(FILE_SYSTEMS)} for a file_system"
    if channel.file_system and not job.subnets:
        yield (
            f"{key}.file_system={channel.file_system}: is reached through a VPC; set job.subnets "
            "and job.security_groups"
        )


def _capacity_problems(target: Target, job: Job) -> Iterator[str]:
    """Rules of SageMaker between the ways to ask for machines.

    Those of `instance_types` are in botocore's description of ResourceConfig.InstancePreferences.
    """
    types = f"target.instance_types={target.instance_types}"
    if target.instance_types and target.instance_groups:
        yield f"{types}: not available with instance groups; drop one of them"
    if target.instance_types and target.spot:
        yield f"{types}: not available for spot jobs; drop it or target.spot"
    if len(set(target.instance_types)) < len(target.instance_types):
        yield f"{types}: each type may be named once"
    # The API's description has no such rule, but calls a plan's machines reserved capacity, which
    # spot capacity is not: a job cannot run on both.
    plan = f"target.training_plan={target.training_plan}"
    if target.training_plan and target.spot:
        yield f"{plan}: reserves capacity, so it excludes spot; drop it or target.spot"
    if target.training_plan and target.instance_types:
        yield f"{plan}: is for one type; set target.instance_type instead of target.instance_types"
    # Systems Manager's agent in the container talks to its service; isolation cuts that off.
    if job.remote_debug and job.network_isolation:
        yield "job.remote_debug=true: needs the network; drop it or job.network_isolation"
    if job.mlflow and job.network_isolation:
        yield f"job.mlflow={job.mlflow}: needs the network; drop it or job.network_isolation"
    if job.mlflow and not _MLFLOW.fullmatch(job.mlflow):
        yield (
            f"job.mlflow={job.mlflow}: must be the ARN of an MLflow server or app, "
            "arn:aws:sagemaker:REGION:ACCOUNT:mlflow-tracking-server/NAME"
        )


def _channel_problems(config: LaunchConfig) -> Iterator[str]:
    groups = {group.name for group in config.target.instance_groups}
    for name, channel in config.job.channels.items():
        key = f"job.channels.{name}"
        if channel.mode == "Pipe":
            yield f"{key}.mode=Pipe: must be File or FastFile, as the job reads files"
        if channel.type == "AugmentedManifestFile":
            yield (
                f"{key}.type={channel.type}: needs Pipe mode, and the job reads files; list the "
                "images in a table (data=manifest)"
            )
        yield from _source_problems(key, channel, config.job)
        if not channel.s3:
            continue
        if (channel.mode, channel.type) == ("FastFile", "S3Prefix") and channel.s3[-1:] != "/":
            yield f"{key}.s3={channel.s3}: must end in / in FastFile mode"
        unknown = sorted(set(channel.instance_groups) - groups)
        if unknown:
            yield f"{key}.instance_groups={unknown}: must be names from target.instance_groups"
    grouped = [bool(channel.instance_groups) for channel in config.job.channels.values()]
    if any(grouped) and not all(grouped):
        yield "job.channels: instance_groups must be set for every channel or for none"
