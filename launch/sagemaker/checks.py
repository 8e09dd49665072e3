"""Checks before a machine is paid for; each problem is a line that names the config key.

AWS refuses a wrong request at no cost and names the member. What is checked here it would accept,
and the job would then cost money, an hour or data.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import ModelConfig, TrainConfig, check_ranks
from entry_point.contract.own_code import PROGRAM
from entry_point.contract.program import UserError
from entry_point.contract.run_folder import SHARDED
from launch.sagemaker.config import Channel, Job, LaunchConfig, Target

# What to do about a required setting that is missing.
HINTS = {
    "target.image": "`make push` prints its URI",
    "job.role": "`make setup-aws` creates one",
    "job.output": "set it to an S3 prefix, s3://bucket/prefix",
}
# ACCOUNT.dkr.ecr[-fips].REGION.DOMAIN/REPOSITORY[:TAG|@DIGEST]; each partition of AWS has a domain.
ECR_IMAGE = re.compile(
    r"\d{12}\.dkr\.ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\.[a-z0-9.-]+/"
    r"[a-z0-9._/-]+(?::(?P<tag>[\w.-]+))?(?:@sha256:[0-9a-f]{64})?"
)
CHANNELS = PurePosixPath("/opt/ml/input/data")
# The channel that the job reads when data.root is null.
DATA_CHANNEL = "training"
PYTHON = PROGRAM / ".venv/bin/python"

_GPU_FAMILY = re.compile(r"ml\.(p|g)\d")
# As the SageMaker SDK has it (`instance_supports_kms`), with the families that came later.
_LOCAL_DISK = re.compile(r"ml\.(g[5-9]|p[5-9]|trn\d|[a-z]+\d+[a-z]*d)")
# How the tag of an image names its device.
_DEVICE_IN_TAG = {"GPU": re.compile(r"(^|[-_.])(gpu|cu\d+)"), "CPU": re.compile(r"(^|[-_.])cpu")}
# From AWS's pages on EC2 instance types: family -> GPUs of its sizes; "" is every other size.
_GPUS: dict[str, dict[str, int]] = {
    "g4dn": {"12xlarge": 4, "": 1},
    "g5": {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8, "": 1},
    "g6": {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8, "": 1},
    "g6e": {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8, "": 1},
    "g7e": {"12xlarge": 2, "24xlarge": 4, "48xlarge": 8, "": 1},
    "p2": {"8xlarge": 8, "16xlarge": 16, "": 1},
    "p3": {"8xlarge": 4, "16xlarge": 8, "": 1},
    "p3dn": {"": 8},
    "p4d": {"": 8},
    "p4de": {"": 8},
    "p5": {"4xlarge": 1, "": 8},
    "p5e": {"": 8},
    "p5en": {"": 8},
    "p6-b200": {"": 8},
    "p6-b300": {"": 8},
    "p6e-gb200": {"": 4},
}


# The request


@functools.cache
def input_shape(operation: str) -> Any:
    """The members of a SageMaker operation's request, as botocore describes them."""
    from botocore.loaders import Loader
    from botocore.model import ServiceModel

    description = Loader().load_service_model("sagemaker", "service-2")
    return ServiceModel(description).operation_model(operation).input_shape


def require_sendable(request: dict[str, Any], operation: str) -> None:
    """Raise UserError, whose lines name the members, for what boto3 would refuse to send."""
    from botocore.validate import ParamValidator

    report = ParamValidator().validate(request, input_shape(operation))
    if report.has_errors():
        raise UserError(*report.generate_report().splitlines())


def missing(settings: dict[str, str | None]) -> Iterator[str]:
    """A line for each setting without a value, with what to do."""
    for key, value in settings.items():
        if not value:
            yield f"{key} is missing; {HINTS[key]}"


# The launch config


def launch_problems(config: LaunchConfig, region: str | None) -> Iterator[str]:
    """What is wrong with the launch config of a training job; `region` is None if unknown."""
    target, job = config.target, config.job
    yield from missing({"job.role": job.role, "job.output": job.output})
    yield from registry_problems(target, region)
    for name, channel in job.channels.items():
        yield from _channel_problems(f"job.channels.{name}", channel)


def _channel_problems(key: str, channel: Channel) -> Iterator[str]:
    if channel.mode == "Pipe":
        yield f"{key}.mode=Pipe: must be File or FastFile, as the job reads files"
    if channel.source.get("S3DataSource", {}).get("S3DataType") == "AugmentedManifestFile":
        yield (
            f"{key}.source: an AugmentedManifestFile needs Pipe mode, and the job reads files; "
            "list the images in a table (data=manifest)"
        )
    if bool(channel.s3) == bool(channel.source):
        yield f"{key}: must have s3 or source, and not both"
    elif channel.mode == "FastFile" and channel.s3 and not channel.s3.endswith("/"):
        yield f"{key}.s3={channel.s3}: must end in / in FastFile mode"


def is_gpu(instance_type: str) -> bool:
    """Whether instances of this type have NVIDIA GPUs."""
    return bool(_GPU_FAMILY.match(instance_type))


def has_local_disk(instance_type: str) -> bool:
    """Whether instances of this type have disks of their own, which SageMaker uses.

    Their hardware encrypts these disks, and AWS refuses a request with a KMS key for them.
    """
    return bool(_LOCAL_DISK.match(instance_type))


def gpu_count(instance_type: str) -> int | None:
    """The GPUs of a GPU type; None for a type that is not known here."""
    _, _, name = instance_type.partition(".")
    family, _, size = name.partition(".")
    sizes = _GPUS.get(family)
    return sizes.get(size, sizes[""]) if sizes and size else None


def registry_problems(target: Target, region: str | None) -> Iterator[str]:
    """What is wrong with the image's location and tag; `region` is None if unknown."""
    image, match = f"target.image={target.image}", ECR_IMAGE.fullmatch(target.image or "")
    yield from missing({"target.image": target.image})
    if target.image and not match:
        uri = "ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME:TAG"
        hint = HINTS["target.image"]
        yield f"{image}: must be in a private ECR repository, {uri}; {hint}"
    if match and region and match["region"] != region:
        remedy = f"push it there, or set AWS_DEFAULT_REGION={match['region']}"
        yield f"{image}: must be in the job's region, {region}; {remedy}"
    kind = target.instance_type
    device, other = ("GPU", "CPU") if is_gpu(kind) else ("CPU", "GPU")
    if match and match["tag"] and _DEVICE_IN_TAG[other].search(match["tag"]):
        remedy = f"`make image push DEVICE={device.lower()}` makes one for it"
        yield f"{image}: its tag is for {other}s, but {kind} is a {device} type; {remedy}"


# The job's own config


def job_problems(
    train: TrainConfig, overrides: Sequence[str], launch: LaunchConfig
) -> Iterator[str]:
    """What would end the training job before its first step; `train` is made of the overrides."""
    target, job = launch.target, launch.job
    yield from _missing_inputs(train, job.channels)
    yield from code_problems(train, overrides)
    yield from _rank_problems(train, target.instance_type, target.instance_count)
    yield from _sharding_problems(job, target.instance_count)


def code_problems(train: TrainConfig, overrides: Sequence[str]) -> list[str]:
    """A line for each setting that names code which is not there or cannot be called as it is.

    Imports the code in `.venv`, where torch is. Without `.venv` nothing is checked, as a line on
    stderr says.
    """
    if not _names_code(train):
        return []
    if not PYTHON.exists():
        sys.stderr.write("names of models and code are not checked: no .venv here; make setup\n")
        return []
    command = [str(PYTHON), "-m", "entry_point.check_code", *overrides]
    done = subprocess.run(command, cwd=PROGRAM, capture_output=True, text=True, check=False)
    if done.returncode and not done.stdout:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        return [f"the code that settings name could not be checked in .venv: {last}"]
    return done.stdout.splitlines()


def _names_code(train: TrainConfig) -> bool:
    """Whether a name is not one of the schema's words: those need no import to be checked."""
    words = [train.augment.name, train.optim.name, train.optim.schedule, train.task.name]
    words += [train.task.loss, train.data.format, *train.loggers]
    return train.model.name != ModelConfig.name or any("." in (word or "") for word in words)


def _rank_problems(train: TrainConfig, instance_type: str, hosts: int) -> Iterator[str]:
    """The ranks of all hosts share a batch equally, and each has its own GPU."""
    trainer = train.trainer
    on_gpus = is_gpu(instance_type) and trainer.device != "cpu"
    gpus = gpu_count(instance_type) if on_gpus else None
    asked = trainer.nproc_per_host
    if on_gpus and gpus is None:
        return
    if gpus and asked and asked > gpus:
        limit = f"must be at most {gpus}, the GPUs of {instance_type}"
        yield f"trainer.nproc_per_host={asked}: {limit}"
        return
    ranks = hosts * (asked or gpus or 1)
    try:
        check_ranks(trainer, max(ranks, 1), train.optim.accumulate)
    except ConfigError as error:
        yield f"{error} on {hosts} x {instance_type}"


def _sharding_problems(job: Job, hosts: int) -> Iterator[str]:
    """Channels of which each of several hosts would get only a share."""
    for name, channel in job.channels.items() if hosts > 1 else ():
        prefix = channel.source.get("S3DataSource", {})
        for key, distribution in (
            ("distribution", channel.distribution),
            ("source.S3DataSource.S3DataDistributionType", prefix.get("S3DataDistributionType")),
        ):
            if distribution == SHARDED:
                yield (
                    f"job.channels.{name}.{key}={SHARDED}: each of the {hosts} hosts would get "
                    "only a share, and training reads all of it on every host; drop it"
                )


def _missing_inputs(train: TrainConfig, channels: Collection[str]) -> Iterator[str]:
    """Inputs that no channel provides. Other absolute paths may exist in your own image."""
    data, weights = train.data, train.model.weights
    if data.format != "demo":
        if data.root is None and DATA_CHANNEL not in channels:
            yield (
                f"data={data.format}: data.root is not set and there is no channel {DATA_CHANNEL}; "
                f"add {_channel(DATA_CHANNEL)}"
            )
        for key in ("root", "index_root", "images"):
            if (value := getattr(data, key)) is not None:
                yield from _missing_path(f"data.{key}", value, channels)
    if weights is not None:
        # The job looks up a folder among its channels, and a file at its path.
        folder = PurePosixPath(weights)
        named = not folder.suffix and (len(folder.parts) == 1 or folder.parts[0] in channels)
        yield from _missing_path("model.weights", weights, channels, CHANNELS if named else None)


def _missing_path(
    key: str, value: str, channels: Collection[str], base: PurePosixPath | None = None
) -> Iterator[str]:
    path = (base or PurePosixPath()) / value
    if value.startswith("s3://"):
        # Of a file, the channel is the prefix that it lies in.
        prefix, file = value.rsplit("/", 1) if path.suffix else (value.rstrip("/"), "")
        yield (
            f"{key}={value}: must be a path in the container; give the prefix as a channel: "
            f"job.channels.NAME={prefix}/ {key}={CHANNELS / 'NAME' / file}"
        )
    elif not path.is_absolute() or _is_of_this_machine(path):
        yield (
            f"{key}={value}: a path on this machine, but the job sees only its channels; after "
            f"`make upload` add {_channel('NAME')} {key}={CHANNELS}/NAME"
        )
    elif CHANNELS in path.parents:
        name = path.relative_to(CHANNELS).parts[0]
        if name not in channels:
            yield f"{key}={value}: there is no channel {name}; add {_channel(name)}"


def _is_of_this_machine(path: PurePosixPath) -> bool:
    """Whether an absolute path means a folder of the host: an image has such below /opt only."""
    if path.is_relative_to("/opt"):
        return False
    homes = ("/home", "/Users", "/root", Path.home())
    exists = os.path.exists(path)  # noqa: PTH110 - Path.exists raises if a name is too long
    return exists or any(path.is_relative_to(home) for home in homes)


def _channel(name: str) -> str:
    return f"job.channels.{name}=s3://bucket/prefix/"
