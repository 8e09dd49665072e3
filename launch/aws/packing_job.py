"""Launching the job that packs a dataset: load the config, check the request, print or send it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from entry_point.config.compose import load_config
from entry_point.config.packing_config import OptimizeConfig
from launch.aws import processing_job
from launch.aws.s3 import split_prefix, split_s3
from launch.aws.sagemaker_job import Job
from launch.aws.session import aws_client, is_dry_run, open_session, print_request
from launch.request import packing_request, training_request
from launch.request.launch_config import LaunchConfig
from launch.request.launch_errors import LaunchError
from launch.request.launch_overrides import load_launch_config

SPLITS = ("train", "val")


@dataclass(frozen=True)
class Packing:
    """The parsed command line; the S3 prefixes do not end in a slash."""

    config: LaunchConfig
    source: str
    output: str
    overrides: list[str]


def load(arguments: Sequence[str]) -> Packing:
    """Split the arguments: `source=`, `output=`, overrides of the launch config and of packing."""
    config, others = load_launch_config(arguments)
    uris, overrides = processing_job.split_uris(others, ("source", "output"))
    return Packing(config, uris["source"], uris["output"], overrides)


def launch(arguments: Sequence[str]) -> Job | None:
    """Send the checked request; a dry run prints it and returns None.

    Raises LaunchError, before anything is written, if the output has objects, or the source has no
    classes or fewer objects than hosts.
    """
    packing = load(arguments)
    if is_dry_run():
        print_request(_checked_request(packing, packing.config.job.region))
        return None
    from launch.aws.ecr import require_image

    session = open_session(packing.config.job.region)
    request = _checked_request(packing, session.region_name)
    require_image(packing.config.target, session)
    s3 = aws_client(session, "s3")
    # A launch that the service then refused leaves the class list behind.
    processing_job.require_empty(s3, "output", packing.output, but="classes.txt")
    classes = _classes(s3, packing.source, packing.config.target.instance_count)
    bucket, key = split_s3(packing_request.classes_uri(packing.output), "output")
    s3.put_object(Bucket=bucket, Key=key, Body="".join(f"{name}\n" for name in classes).encode())
    what = f"packs {len(classes)} classes into {packing.output}"
    return processing_job.create(request, session, what)


def _checked_request(packing: Packing, region: str | None) -> dict[str, Any]:
    config = packing.config
    load_config("optimize", OptimizeConfig, packing.overrides)
    name = training_request.job_name(config.job, datetime.now(UTC))
    request = packing_request.build(config, packing.source, packing.output, packing.overrides, name)
    packing_request.check(request, config, packing.overrides, region)
    return request


def _classes(s3: Any, source: str, hosts: int) -> list[str]:
    """The class folders, the same in both splits; raises LaunchError if the source is unusable."""
    bucket, prefix = split_prefix(source, "source")
    splits = {split: _folders(s3, bucket, f"{prefix}{split}/") for split in SPLITS}
    present = [found for found in splits.values() if found]
    if not present:
        raise LaunchError(
            f"source={source}: has no class folders; must have {source}/train/CLASS/IMAGE and "
            f"{source}/val/CLASS/IMAGE"
        )
    if different := sorted(present[0] ^ present[-1]):
        raise LaunchError(
            f"source={source}: train and val must have the same classes; only one of them has "
            f"{', '.join(different[:5])}"
        )
    objects = s3.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=hosts)["KeyCount"]
    if objects < hosts:
        raise LaunchError(
            f"target.instance_count={hosts}: must be at most the number of objects in {source}, "
            f"{objects}"
        )
    return sorted(present[0])


def _folders(s3: Any, bucket: str, prefix: str) -> set[str]:
    pages = s3.get_paginator("list_objects_v2").paginate(
        Bucket=bucket, Prefix=prefix, Delimiter="/"
    )
    found = pages.search("CommonPrefixes[].Prefix || `[]`")
    names = {path.removeprefix(prefix).rstrip("/") for path in found}
    return {name for name in names if not name.startswith(".")}
