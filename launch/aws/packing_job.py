"""Launching the job that packs a dataset: load the config, check the request, print or send it."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from entry_point.config.compose import load_config
from entry_point.config.packing_config import OptimizeConfig
from launch.aws.s3.s3_bucket import split_prefix, split_s3
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
    prefixes = {"source": "", "output": ""}
    overrides = []
    for override in others:
        key, _, value = override.partition("=")
        if key in prefixes:
            prefixes[key] = value.strip("'\"").rstrip("/")
        else:
            overrides.append(override)
    for key, uri in prefixes.items():
        if not uri.startswith("s3://"):
            raise LaunchError(f"{key}={uri}: must be s3://bucket/prefix")
    return Packing(config, prefixes["source"], prefixes["output"], overrides)


def launch(arguments: Sequence[str]) -> Job | None:
    """Send the checked request; a dry run prints it and returns None.

    Raises LaunchError, before anything is written, if the output has objects, or the source has no
    classes or fewer objects than hosts.
    """
    packing = load(arguments)
    if is_dry_run():
        print_request(_checked_request(packing, packing.config.job.region))
        return None
    from launch.aws.cost import estimate_cost
    from launch.aws.ecr import require_image

    session = open_session(packing.config.job.region)
    request = _checked_request(packing, session.region_name)
    require_image(packing.config.target, session)
    s3 = aws_client(session, "s3")
    _require_empty(s3, packing.output)
    classes = _classes(s3, packing.source, packing.config.target.instance_count)
    sys.stdout.write(estimate_cost(packing.config.target, session, "Processing") + "\n")
    bucket, key = split_s3(packing_request.classes_uri(packing.output), "output")
    s3.put_object(Bucket=bucket, Key=key, Body="".join(f"{name}\n" for name in classes).encode())
    aws_client(session, "sagemaker").create_processing_job(**request)
    name: str = request["ProcessingJobName"]
    sys.stdout.write(f"job {name} created: packs {len(classes)} classes into {packing.output}\n")
    return Job(session, name, "Processing")


def _checked_request(packing: Packing, region: str | None) -> dict[str, Any]:
    config = packing.config
    load_config("optimize", OptimizeConfig, packing.overrides)
    name = training_request.job_name(config.job, datetime.now(UTC))
    request = packing_request.build(config, packing.source, packing.output, packing.overrides, name)
    packing_request.check(request, config, packing.overrides, region)
    return request


def _require_empty(s3: Any, output: str) -> None:
    bucket, prefix = split_prefix(output, "output")
    found = s3.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=2).get("Contents", [])
    # A launch that the service then refused leaves the class list behind.
    others = [item["Key"] for item in found if item["Key"] != f"{prefix}classes.txt"]
    if others:
        raise LaunchError(
            f"output={output}: not empty, the first object is s3://{bucket}/{others[0]}; "
            "choose another prefix, or delete the objects"
        )


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
