"""A launch config that sends your own code: its channel, its variable and its tags."""

import re
from collections.abc import Iterable
from dataclasses import replace

from entry_point.contract import own_code
from launch.request.code.code_files import OwnCode, require_free_channel
from launch.request.image_checks import ECR_IMAGE
from launch.request.launch_config import Channel, LaunchConfig

CODE_TAG = "code"
REVISION_TAG = "image-revision"
# What `make image` tags an image with: the device and the commit.
_REVISION = re.compile(r"(?:cpu|gpu)-([0-9a-f]{7,40})")


def with_code(config: LaunchConfig, code: OwnCode) -> LaunchConfig:
    """The config with what a job with this code needs.

    Raises LaunchError if a channel of the user's has the name of the code's.
    """
    job = config.job
    require_free_channel(job.channels, "job.channels")
    channels = {**job.channels}
    if job.output:
        groups = [group.name for group in config.target.instance_groups]
        grouped = any(channel.instance_groups for channel in channels.values())
        channels[own_code.CHANNEL] = Channel(
            s3=f"{job.output.rstrip('/')}/code/{code.hash}/",
            mode="File",
            instance_groups=groups if grouped else [],
        )
    environment = {**job.environment, own_code.HASH: code.hash}
    image = ECR_IMAGE.fullmatch(config.target.image or "")
    revision = revision_tag([image["tag"]] if image and image["tag"] else [])
    tags = {CODE_TAG: code.hash, **revision, **job.tags}
    return replace(config, job=replace(job, channels=channels, environment=environment, tags=tags))


def revision_tag(image_tags: Iterable[str]) -> dict[str, str]:
    """The job's tag with the commit that one of the image's tags names; empty if none does."""
    found = (_REVISION.fullmatch(tag) for tag in image_tags)
    return next(({REVISION_TAG: match[1]} for match in found if match), {})
