"""Launching the job that packs a data set: composed, checked, shown or sent."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from entry_point.config.compose import load_config
from entry_point.config.packing_config import OptimizeConfig
from launch.request import packing_request
from launch.request import training_request as request
from launch.request.launch_config import LaunchConfig
from launch.request.launch_errors import LaunchError
from launch.request.launch_overrides import load_launch_config

SPLITS = ("train", "val")


@dataclass(frozen=True)
class Packing:
    """A packing as asked for on the command line; S3 prefixes without a slash at their end."""

    config: LaunchConfig
    source: str
    output: str
    overrides: list[str]


def load(arguments: Sequence[str]) -> Packing:
    """What the overrides ask for: `source=`, `output=`, the launch config's, the packing's."""
    config, theirs = load_launch_config(arguments)
    given = {"source": "", "output": ""}
    overrides = []
    for override in theirs:
        key, _, value = override.partition("=")
        if key in given:
            given[key] = packing_request.output_root(value.strip("'\""))
        else:
            overrides.append(override)
    for key, uri in given.items():
        if not uri.startswith("s3://"):
            raise LaunchError(f"{key}={uri}: expected an S3 prefix; add {key}=s3://bucket/prefix")
    return Packing(config, given["source"], given["output"], overrides)


def dry_run(arguments: Sequence[str]) -> None:
    """Print the request as JSON, checked, without credentials and without a network."""
    packing = load(arguments)
    built = _checked_request(packing, packing.config.job.region)
    sys.stdout.write(json.dumps(built, indent=2, ensure_ascii=False) + "\n")


def launch(arguments: Sequence[str]) -> tuple[Any, str]:
    """Send the request; returns the boto3 session and the job's name.

    Raises LaunchError, before anything is written, where the output holds something already, the
    source has no classes, or has fewer objects than there are hosts.
    """
    from launch.aws import cost
    from launch.aws import session as aws
    from launch.aws.training_job import require_image

    packing = load(arguments)
    session = aws.open_session(packing.config.job.region)
    built = _checked_request(packing, session.region_name)
    require_image(built["AppSpecification"]["ImageUri"], session)
    s3 = aws.client(session, "s3")
    _require_nothing_there(s3, packing.output)
    classes = _classes(s3, packing.source, packing.config.target.instance_count)
    sys.stdout.write(cost.estimate(packing.config.target, session, "Processing") + "\n")
    bucket, key = aws.split_s3(packing_request.classes_uri(packing.output), "output")
    s3.put_object(Bucket=bucket, Key=key, Body="".join(f"{name}\n" for name in classes).encode())
    aws.client(session, "sagemaker").create_processing_job(**built)
    name: str = built["ProcessingJobName"]
    sys.stdout.write(f"job {name} created: {len(classes)} classes into {packing.output}\n")
    return session, name


def _checked_request(packing: Packing, region: str | None) -> dict[str, Any]:
    config = packing.config
    load_config("optimize", OptimizeConfig, packing.overrides)
    name = request.job_name(config.job, datetime.now(timezone.utc))
    built = packing_request.build(config, packing.source, packing.output, packing.overrides, name)
    packing_request.check(built, config, packing.overrides, region)
    return built


def _require_nothing_there(s3: Any, output: str) -> None:
    from launch.aws import session as aws

    bucket, prefix = aws.split_s3(output, "output")
    prefix = f"{prefix}/".lstrip("/")
    found = s3.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=2).get("Contents", [])
    # The class list is this program's own, left by a launch that was refused afterwards.
    others = [item["Key"] for item in found if item["Key"] != f"{prefix}classes.txt"]
    if others:
        raise LaunchError(
            f"output={output}: holds objects already, the first is s3://{bucket}/{others[0]}: "
            "choose another prefix, or remove them"
        )


def _classes(s3: Any, source: str, hosts: int) -> list[str]:
    """The class folders of both splits, which must agree; LaunchError where they do not."""
    from launch.aws import session as aws

    bucket, prefix = aws.split_s3(source, "source")
    prefix = f"{prefix}/".lstrip("/")
    splits = {split: _folders(s3, bucket, f"{prefix}{split}/") for split in SPLITS}
    present = [found for found in splits.values() if found]
    if not present:
        raise LaunchError(
            f"source={source}: has no class folders; expected {source}/train/CLASS/IMAGE and "
            f"{source}/val/CLASS/IMAGE"
        )
    if different := sorted(present[0] ^ present[-1]):
        raise LaunchError(
            f"source={source}: the classes of train and val differ: {', '.join(different[:5])} "
            "in only one of them"
        )
    objects = s3.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=hosts)["KeyCount"]
    if objects < hosts:
        raise LaunchError(
            f"target.instance_count={hosts}: {source} has only {objects} objects to share among "
            "the machines"
        )
    return sorted(present[0])


def _folders(s3: Any, bucket: str, prefix: str) -> set[str]:
    pages = s3.get_paginator("list_objects_v2").paginate(
        Bucket=bucket, Prefix=prefix, Delimiter="/"
    )
    names = {
        found["Prefix"].removeprefix(prefix).rstrip("/")
        for page in pages
        for found in page.get("CommonPrefixes", [])
    }
    return {name for name in names if not name.startswith(".")}
