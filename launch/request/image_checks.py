"""Checks of the image: does it fit the machines, and can SageMaker pull it."""

import re
from collections.abc import Iterator

from launch.request.config_keys import HINTS
from launch.request.launch_config import DEVICES, Target

# ACCOUNT.dkr.ecr[-fips].REGION.amazonaws.com[.cn]/REPOSITORY[:TAG|@DIGEST]
ECR_IMAGE = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/"
    r"(?P<repository>[a-z0-9._/-]+)(?::(?P<tag>[\w.-]+))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_GPU_FAMILY = re.compile(r"ml\.(p|g)\d")
_OTHER_ACCELERATOR = re.compile(r"ml\.(trn|inf)\d")
# How the tag of an image names its device.
_DEVICE_IN_TAG = {"gpu": re.compile(r"(^|[-_.])(gpu|cu\d+)"), "cpu": re.compile(r"(^|[-_.])cpu")}


def is_gpu(instance_type: str) -> bool:
    """Whether instances of this type have NVIDIA GPUs."""
    return bool(_GPU_FAMILY.match(instance_type))


def machine_problems(target: Target, region: str | None) -> Iterator[str]:
    """What is wrong with the image, the instance types and how they fit together."""
    if target.device not in DEVICES:
        yield f"target.device={target.device}: must be cpu or gpu"
        return
    for key, instance_type in _instance_types(target):
        if _OTHER_ACCELERATOR.match(instance_type):
            yield f"{key}={instance_type}: must be a CPU type or a type with NVIDIA GPUs"
        elif is_gpu(instance_type) != (target.device == "gpu"):
            yield (
                f"{key}={instance_type}: must be a {target.device.upper()} type, as "
                f"target.device={target.device}"
            )
    yield from registry_problems(target, region)


def _instance_types(target: Target) -> list[tuple[str, str]]:
    """Config key and instance type of each group of machines."""
    if target.instance_groups:
        return [
            (f"target.instance_groups[{number}].instance_type", group.instance_type)
            for number, group in enumerate(target.instance_groups)
        ]
    if target.instance_types:
        preferred = enumerate(target.instance_types)
        return [(f"target.instance_types[{number}]", each) for number, each in preferred]
    return [("target.instance_type", target.instance_type)] if target.instance_type else []


def registry_problems(target: Target, region: str | None) -> Iterator[str]:
    """What is wrong with the image's location and tag; `region` is None if unknown."""
    image, hint = f"target.image={target.image}", HINTS["target.image"]
    match = ECR_IMAGE.fullmatch(target.image or "")
    if not target.image:
        yield f"target.image is missing; {hint}"
    elif not match:
        uri = "ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME@sha256:..."
        yield f"{image}: must be in a private ECR repository, {uri}; {hint}"
    elif len(match["repository"]) < 2:
        yield f"{image}: the repository name must have at least 2 characters; {hint}"
    elif region and match["region"] != region:
        yield f"{image}: must be in the job's region, {region}; push it there or set job.region"
    if match and match["tag"] and is_for_other_device(match["tag"], target.device):
        other = "gpu" if target.device == "cpu" else "cpu"
        yield f"{image}: tag is for {other}, but target.device={target.device}"


def is_for_other_device(tag: str, device: str) -> bool:
    """Whether the tag names the device that the image was not built for."""
    other = "gpu" if device == "cpu" else "cpu"
    return _DEVICE_IN_TAG[other].search(tag) is not None
