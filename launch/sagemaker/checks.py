"""What AWS accepts and what then costs money, hours or data: each problem is a line that names the
key. What AWS refuses, it says itself, at once and for nothing.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from entry_point.config.commands import make, typed
from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import TrainConfig, check_ranks
from entry_point.job import own_code
from entry_point.job.program import UserError
from entry_point.job.run_folder import CONTAINER_ROOT, PRETRAINED, SHARDED, data_channels
from entry_point.job.text import counted
from launch.aws_cli import MINE
from launch.sagemaker.aws import aws_client, region_of
from launch.sagemaker.config import LaunchConfig
from launch.sagemaker.plan import Plan
from launch.sagemaker.s3 import require_bucket, require_objects, split_s3
from launch.sagemaker.training_request import KEPT, WRITTEN, host_counts, is_gpu

CHANNELS = PurePosixPath("/opt/ml/input/data")
DATA_CHANNEL = "training"
"""The channel that the job reads when data.root is null; `train` does, too, as a split."""
_HINTS = {
    "target.image": "`make push` prints its URI",
    "job.role": "`make setup-aws` creates one",
    "job.output": "set it to an S3 prefix, s3://bucket/prefix",
}
# ACCOUNT.dkr.ecr[-fips].REGION.DOMAIN/REPOSITORY[:TAG|@DIGEST]; each partition of AWS has a domain.
_ECR_IMAGE = re.compile(
    r"\d{12}\.dkr\.ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\.[a-z0-9.-]+/"
    r"[a-z0-9._/-]+(?::(?P<tag>[\w.-]+))?(?:@sha256:[0-9a-f]{64})?"
)
# The device in the tag of an image.
_DEVICE_IN_TAG = {"GPU": re.compile(r"(^|[-_.])(gpu|cu\d+)"), "CPU": re.compile(r"(^|[-_.])cpu")}


def require_valid(plan: Plan, session: Any) -> None:
    """Raise UserError with one line for each problem of a training job.

    AWS is asked whether the buckets exist and hold the inputs; without a session, nothing.
    """
    if found := [*problems(plan, region_of(session))]:
        raise UserError(*found)
    outputs = _outputs(plan)
    for key, uri in outputs.items():
        split_s3(uri, key)
    if session:
        s3 = aws_client(session, "s3")
        for key, uri in outputs.items():
            require_bucket(s3, uri, key)
        for key, uri in _inputs(plan).items():
            require_objects(s3, uri, key)
    warn_of_outputs(outputs, plan.request["RoleArn"], plan.config.job.output)


def problems(plan: Plan, region: str | None) -> Iterator[str]:
    """Yields what is wrong with a training job; `region` is None if unknown."""
    request, config, given = plan.request, plan.config, plan.config.job.request
    role, output = request.get("RoleArn"), member_of(request, "OutputDataConfig.S3OutputPath")
    yield from missing({"job.role": role, "job.output": output})
    image, kind = "AlgorithmSpecification.TrainingImage", "ResourceConfig.InstanceType"
    yield from machine_problems(request, config, image, kind, region)
    kind = member_of(request, kind) or config.target.instance_type
    if plan.train.trainer.device == "cuda" and not is_gpu(kind):
        yield f"trainer.device=cuda: {kind} has no GPU; add target=gpu, or drop it"
    if config.job.name in (KEPT, own_code.CHANNEL):
        key = f"job.name={config.job.name}"
        yield f"{key}: that folder of job.output is for every job's; choose another"
    counts = host_counts(request["ResourceConfig"])
    yield from _channel_problems(plan, max(counts))
    is_given = "InputDataConfig" in given
    note = "; job.request.InputDataConfig replaces all of job.channels" if is_given else ""
    yield from (f"{line}{note}" for line in _missing_inputs(plan.train, plan.channels))
    for hosts in dict.fromkeys(counts):
        try:
            ranks = hosts * (plan.train.trainer.nproc_per_host or 1)
            check_ranks(plan.train.trainer, ranks, plan.train.optim.accumulate)
        except ConfigError as error:
            yield f"{error} on {counted(hosts, 'host')}"
    kept = given.get("CheckpointConfig", {})
    if config.resume_from and (kept is None or "S3Uri" in kept):
        key = f"resume_from={config.resume_from}"
        yield f"{key}: job.request.CheckpointConfig replaces it; drop one of them"
    yield from _contract_problems(request)


def _contract_problems(request: dict[str, Any]) -> Iterator[str]:
    """Yields what job and launcher would not find where they look for it."""
    for member, folder in WRITTEN.items():
        path = request.get(member, {}).get("LocalPath", folder)
        if PurePosixPath(path) != PurePosixPath(folder):
            yield (
                f"job.request.{member}.LocalPath={path}: the job writes to {folder}, and nothing "
                "else would be uploaded while it runs; drop it"
            )
    if member_of(request, "OutputDataConfig.CompressionType") == "NONE":
        yield (
            "job.request.OutputDataConfig.CompressionType=NONE: deploy, predict and download "
            "read the model from model.tar.gz; drop it"
        )
    algorithm = request["AlgorithmSpecification"]
    arguments = algorithm.get("ContainerArguments", ["train"])
    if arguments[:1] != ["train"] and "ContainerEntrypoint" not in algorithm:
        member = "job.request.AlgorithmSpecification.ContainerArguments"
        yield f"{member}={arguments}: must begin with train; overrides may follow"
    yield from environment_problems(request)


# What all kinds of jobs share


def member_of(members: Any, path: str) -> Any:
    """Returns the member at a path such as `ResourceConfig.InstanceType`; None without it."""
    for name in path.split("."):
        members = members.get(name) if isinstance(members, dict) else None
    return members


def key_of(given: dict[str, Any], member: str, setting: str) -> str:
    """Returns the key that a member of the request comes from: `job.request` or its setting."""
    return setting if member_of(given, member) is None else f"job.request.{member}"


def missing(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line for each setting without a value, with what to do."""
    yield from (f"{key} is missing; {_HINTS[key]}" for key, value in settings.items() if not value)


def machine_problems(
    request: dict[str, Any], config: LaunchConfig, image: str, kind: str, region: str | None
) -> Iterator[str]:
    """Yields what is wrong with the image and the machines that run it.

    `image` and `kind` are the paths of these members of the request.
    """
    given = config.job.request
    image_key = key_of(given, image, "target.image")
    type_key = key_of(given, kind, "target.instance_type")
    uri, kind = member_of(request, image), member_of(request, kind) or config.target.instance_type
    match = _ECR_IMAGE.fullmatch(uri or "")
    if not uri:
        yield from missing({"target.image": uri})
    elif not match:
        place = "ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME:TAG"
        hint = _HINTS["target.image"]
        yield f"{image_key}={uri}: must be in a private ECR repository, {place}; {hint}"
    elif region and match["region"] != region:
        remedy = f"push it there, or set AWS_DEFAULT_REGION={match['region']}"
        yield f"{image_key}={uri}: must be in the job's region, {region}; {remedy}"
    if not kind.startswith("ml."):
        meant = f"ml.{kind.lower().removeprefix('ml.')}"
        yield f"{type_key}={kind}: must be a type of SageMaker's; did you mean {meant}?"
        return
    device, other = ("GPU", "CPU") if is_gpu(kind) else ("CPU", "GPU")
    if match and match["tag"] and _DEVICE_IN_TAG[other].search(match["tag"]):
        wrong = f"{image_key}={uri}: its tag is for {other}s, but {kind} is a {device} type"
        yield (
            f"{wrong}; choose a {other} type, as target={other.lower()} does, or `make image push "
            f"DEVICE={device.lower()}` makes one for it"
        )


def environment_problems(request: dict[str, Any]) -> Iterator[str]:
    """Yields the variables of a job that would lead it to another folder than AWS uploads."""
    root = request.get("Environment", {}).get("ML_ROOT", str(CONTAINER_ROOT))
    if PurePosixPath(root) != PurePosixPath(CONTAINER_ROOT):
        yield f"job.environment.ML_ROOT={root}: SageMaker reads and fills {CONTAINER_ROOT}; drop it"


def warn_of_outputs(
    outputs: Mapping[str, str | None], role: str | None, output: str | None
) -> None:
    """Say which prefixes are outside of that of `make setup-aws` or, if this is not its role, of
    job.output: the template's role may not write there.

    Another role may, so this is no error.
    """
    mine = yaml.safe_load(MINE.read_text()) if MINE.is_file() else None
    if role and member_of(mine, "job.role") == role:
        output = member_of(mine, "job.output")
    for key, uri in outputs.items():
        if uri and output and not f"{uri}/".startswith(f"{output.rstrip('/')}/"):
            sys.stderr.write(
                f"{key}={uri}: outside of {output}; the role of `make setup-aws` may write below "
                "its OutputPrefix only, and the job would fail when it uploads; choose a prefix "
                f"below {output}, unless job.role may write here\n"
            )


# What a training job reads and writes in S3


def _outputs(plan: Plan) -> dict[str, str]:
    """Returns the S3 prefixes to write to, by their setting."""
    found: dict[str, str] = {}
    for member, setting in (
        ("OutputDataConfig.S3OutputPath", "job.output"),
        ("CheckpointConfig.S3Uri", "resume_from" if plan.config.resume_from else "job.output"),
        ("TensorBoardOutputConfig.S3OutputPath", "job.output"),
    ):
        if uri := member_of(plan.request, member):
            found.setdefault(key_of(plan.config.job.request, member, setting), uri)
    return found


def _inputs(plan: Plan) -> dict[str, str]:
    """Returns the S3 prefixes that must hold objects, by their setting; without the code."""
    # With a prefix that only has folders of several jobs, the job would start from scratch.
    earlier = plan.config.resume_from
    found = {"resume_from": f"{earlier.rstrip('/')}/step-"} if earlier else {}
    for name, channel in plan.channels.items():
        source = channel["DataSource"].get("S3DataSource")
        if source and not (plan.code and name == own_code.CHANNEL):
            found[_channel_key(plan, name)] = source["S3Uri"]
    return found


def _channel_key(plan: Plan, name: str) -> str:
    is_given = "InputDataConfig" in plan.config.job.request
    return f"job.request.InputDataConfig.{name}" if is_given else f"job.channels.{name}"


def _channel_problems(plan: Plan, hosts: int) -> Iterator[str]:
    if plan.code and own_code.CHANNEL not in plan.channels:
        yield "job.code=true: its channel is not sent; add job.channels.code"
    default = plan.request["AlgorithmSpecification"]["TrainingInputMode"]
    for name, channel in plan.channels.items():
        key, mode = _channel_key(plan, name), channel.get("InputMode", default)
        source = channel["DataSource"].get("S3DataSource", {})
        uri = source.get("S3Uri", "s3://")
        if mode == "Pipe":
            yield f"{key}.InputMode=Pipe: the job reads files; must be File or FastFile"
        if not uri.startswith("s3://"):
            upload = make("upload", {}, uri, "s3://bucket/prefix")
            yield f"{key}={uri}: must be s3://bucket/prefix; copy a folder there: {upload}"
        elif mode == "FastFile" and source and not uri.endswith("/"):
            yield f"{key}={uri}: must end in / in FastFile mode"
        if hosts > 1 and source.get("S3DataDistributionType") == SHARDED:
            yield (
                f"{key}: with {SHARDED}, each of the {hosts} hosts would get only a share, and "
                "training reads all of it on every host; drop it"
            )


def _missing_inputs(train: TrainConfig, channels: Collection[str]) -> Iterator[str]:
    """Inputs that no channel provides. Other absolute paths may exist in your own image."""
    data, weights = train.data, train.model.weights
    if data.format != "demo":
        if data.root is None and not {DATA_CHANNEL, "train"} & {*channels}:
            missing = f"data.root is not set and there is no channel {DATA_CHANNEL}"
            others = data_channels(channels)
            remedy = _channel(DATA_CHANNEL)
            if others:
                remedy = f"data.root={CHANNELS / others[0]}, or data=demo for generated images"
            yield f"data={data.format}: {missing}; add {remedy}"
        for key in ("root", "index_root", "images"):
            if (value := getattr(data, key)) is not None:
                yield from _missing_path(f"data.{key}", value, channels)
    if weights == PRETRAINED:
        if PRETRAINED not in channels:
            yield (
                f"model.weights={PRETRAINED}: there is no channel {PRETRAINED}; after "
                f"`make weights ARGS={train.model.name}` and `make upload` add "
                f"{_channel(PRETRAINED)}"
            )
    elif weights and weights.endswith(".tar.gz"):
        yield (
            f'model.weights={weights}: is an archive; unpack it: `make sagemaker ARGS="download '
            f'JOB"`; then `make upload` its folder runs/JOB/model and add {_channel("NAME")} '
            "model.weights=NAME"
        )
    elif weights is not None:
        # The job looks up a folder among its channels, and a file at its path.
        folder = PurePosixPath(weights)
        is_named = not folder.suffix and (len(folder.parts) == 1 or folder.parts[0] in channels)
        path = str(CHANNELS / weights) if is_named else weights
        yield from _missing_path("model.weights", weights, channels, path)


def _missing_path(
    key: str, value: str, channels: Collection[str], inside: str = ""
) -> Iterator[str]:
    """Yields why a job does not find a value of a setting, which it looks up at `inside`."""
    path = PurePosixPath(inside or value)
    if value.startswith("s3://"):
        # For a file, the channel is its prefix.
        prefix, file = value.rsplit("/", 1) if path.suffix else (value.rstrip("/"), "")
        yield (
            f"{key}={value}: must be a path in the container; give the prefix as a channel: "
            + typed({"job.channels.NAME": f"{prefix}/", key: str(CHANNELS / "NAME" / file)})
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
    """Returns whether an absolute path means a folder of the host: an image has such below /opt
    only."""
    if path.is_relative_to("/opt"):
        return False
    homes = ("/home", "/Users", "/root", Path.home())
    exists = os.path.exists(path)  # noqa: PTH110 - Path.exists raises if a name is too long
    return exists or any(path.is_relative_to(home) for home in homes)


def _channel(name: str) -> str:
    return f"job.channels.{name}=s3://bucket/prefix/"
