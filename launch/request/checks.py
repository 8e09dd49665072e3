"""All that can be known to be wrong with a training request before it is sent, by config key."""

from collections.abc import Iterator, Sequence
from typing import Any

from launch.request import config_keys
from launch.request.image_rules import machine_rules
from launch.request.launch_config import LaunchConfig
from launch.request.launch_errors import LaunchError


def check(
    request: dict[str, Any], config: LaunchConfig, region: str | None, others: Sequence[str] = ()
) -> None:
    """Raise LaunchError with one line for each thing wrong, naming the config key.

    `region` is the one the job is to run in, None where it is not known yet; `others` are lines
    about what the request only carries, the job's own overrides.
    """
    found = config_keys.refusals(request, "CreateTrainingJob", config)
    found += [*_rules(request, config, region), *others]
    if found:
        raise LaunchError("\n".join(found))


def _rules(request: dict[str, Any], config: LaunchConfig, region: str | None) -> Iterator[str]:
    yield from _spot_rules(request, config)
    yield from _resume_rules(config)
    yield from _channel_rules(config)
    yield from machine_rules(config.target, region)
    yield from network_rules(config)
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


def network_rules(config: LaunchConfig) -> Iterator[str]:
    """What is wrong with the network that the job is to be part of."""
    job = config.job
    if bool(job.subnets) != bool(job.security_groups):
        missing, given = ("job.security_groups", "job.subnets")
        if not job.subnets:
            missing, given = given, missing
        yield f"{missing}: a VPC needs it beside {given}"
