"""Checks before a machine is paid for; each problem is a line that names the config key.

Of the request, what AWS's own description of it says. Of the settings, what AWS would accept, and
the job would then cost money, an hour or data.
"""

from __future__ import annotations

import difflib
import functools
import math
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from entry_point.config.commands import make
from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import PRETRAINED, TrainConfig, check_ranks
from entry_point.job import own_code
from entry_point.job.program import UserError
from entry_point.job.run_folder import CONTAINER_ROOT, SHARDED
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
# The folder of job.output with the checkpoints of all jobs, which a rule of the bucket deletes.
KEPT = "checkpoints"
# Members of a training job's request -> the folder that the job writes for them.
WRITTEN = {
    "CheckpointConfig": "/opt/ml/checkpoints",
    "TensorBoardOutputConfig": "/opt/ml/output/data/tensorboard",
}
# The channel that the job reads when data.root is null.
DATA_CHANNEL = "training"

_GPU_FAMILY = re.compile(r"ml\.(p|g)\d")
# How the tag of an image names its device.
_DEVICE_IN_TAG = {"GPU": re.compile(r"(^|[-_.])(gpu|cu\d+)"), "CPU": re.compile(r"(^|[-_.])cpu")}
# Member of a request -> its setting.
_SETTINGS = {
    "TrainingJobName": "job.name",
    "ProcessingJobName": "job.name",
    "AlgorithmSpecification.TrainingImage": "target.image",
    "AppSpecification.ImageUri": "target.image",
    "RoleArn": "job.role",
    "OutputDataConfig.S3OutputPath": "job.output",
    "OutputDataConfig.KmsKeyId": "job.kms_key",
    "ResourceConfig.InstanceType": "target.instance_type",
    "ResourceConfig.InstanceCount": "target.instance_count",
    "ResourceConfig.VolumeSizeInGB": "target.volume_gb",
    "ProcessingResources.ClusterConfig.InstanceType": "target.instance_type",
    "ProcessingResources.ClusterConfig.InstanceCount": "target.instance_count",
    "ProcessingResources.ClusterConfig.VolumeSizeInGB": "target.volume_gb",
    "StoppingCondition.MaxRuntimeInSeconds": "target.max_runtime_s",
    "CheckpointConfig.S3Uri": "resume_from",
    "Environment": "job.environment",
    "VpcConfig": "job.network.VpcConfig",
    "NetworkConfig": "job.network",
    "HyperParameters.": "",
    "ProductionVariants[0].InstanceType": "instance_type",
    "ProductionVariants[0]": "variant",
    "PrimaryContainer.Environment": "environment",
    "ModelName": "name",
}
# Java's character classes in patterns, as Python has them.
_JAVA_CLASSES = {r"\p{L}": r"\w", r"\p{N}": r"\d", r"\p{Z}": " ", r"\p{Alnum}": "a-zA-Z0-9"}
_MOST_WORDS = 6


# The request


@functools.cache
def input_shape(operation: str) -> Any:
    """Returns the members of a SageMaker operation's request, as botocore describes them."""
    from botocore.loaders import Loader
    from botocore.model import ServiceModel

    description = Loader().load_service_model("sagemaker", "service-2")
    return ServiceModel(description).operation_model(operation).input_shape


def require_sendable(
    request: dict[str, Any], operation: str, given: dict[str, Any] | None = None
) -> None:
    """Raise UserError for what the operation would refuse, as far as its description says.

    That is: types, required members, lengths, ranges, patterns, and words that look misspelt. A
    word that is new to botocore's lists and near none of them is only warned of. `given` are the
    members that `job.request` has set, which may name any instance type.
    """
    if wrong := type_errors(request, operation):
        raise UserError(*wrong)
    shape = input_shape(operation)
    if lines := [f"{key}: {message}" for key, message in _refused(request, shape, (), given or {})]:
        raise UserError(*lines)


def _refused(
    value: Any, shape: Any, path: tuple[str, ...], given: Any, named: str = ""
) -> Iterator[tuple[str, str]]:
    """(key and value, what they must be) of each part of a request outside of its limits."""
    kind = shape.type_name
    if kind in ("structure", "map"):
        # What the user has named: a channel, a tag.
        named = value.get("ChannelName") or value.get("Key") or named
        for name, member in value.items():
            below = given.get(name) if isinstance(given, dict) else None
            inner = shape.members[name] if kind == "structure" else shape.value
            if kind == "map" and (message := _limit(name, shape.key)):
                yield _setting((*path, name), given, named), message
            yield from _refused(member, inner, (*path, name), below, named)
    elif kind == "list":
        for number, member in enumerate(value):
            below = given[number] if isinstance(given, list) else None
            yield from _refused(member, shape.member, (*path, f"[{number}]"), below, named)
    asked = path[-1:] == ("InstanceType",) and given is not None
    if message := _limit(value, shape, is_asked_for=asked):
        key = _setting(path, given, named)
        if message.startswith("unknown"):
            sys.stderr.write(f"{key}={value}: {message}\n")
        else:
            if key == "target.instance_type":
                message += f" (job.request.{'.'.join(path)} sends a type that is new at AWS)"
            text = str(value)
            yield (f"{key}={text if len(text) < 80 else f'{text[:77]}...'}", message)


def _setting(path: Sequence[str], given: Any, named: str) -> str:
    """Returns the setting that a member of the request comes from, as the user types it."""
    member = ".".join(path).replace(".[", "[")
    if given is not None:
        return f"job.request.{member}"
    member = re.sub(r"^InputDataConfig\[\d+\]", f"job.channels.{named}", member)
    member = re.sub(r"^Tags\[\d+\]\.\w+", f"job.tags.{named}", member)
    for start, key in _SETTINGS.items():
        if member.startswith(start):
            return key + member[len(start) :]
    return member


def _limit(value: Any, shape: Any, *, is_asked_for: bool = False) -> str:
    """Returns what a value must be by its shape's own description; empty if it is that.

    `is_asked_for`: sent even if it is no word of the description's.
    """
    limits = shape.metadata
    size = value if isinstance(value, int | float) else len(value)
    if size > limits.get("max", math.inf):
        if size is value:
            return f"must be at most {limits['max']}"
        parts = "characters" if isinstance(value, str) else "members"
        return f"must have at most {limits['max']} {parts}, has {size}"
    words = limits.get("enum", ())
    if words and value not in words and not is_asked_for:
        if hint := _near_type(value, words) if value.count(".") else near_word(value, words):
            most = f"must be one of {', '.join(words)}; " if len(words) <= _MOST_WORDS else ""
            return f"{most}did you mean {hint}?"
        return "unknown to this version of boto3; sent as it is"
    pattern = limits.get("pattern")
    for java, python in _JAVA_CLASSES.items():
        pattern = pattern and pattern.replace(java, python)
    if pattern and not re.fullmatch(pattern, value):
        return f"must match {limits['pattern']}"
    return ""


def near_word(value: str, words: Iterable[str]) -> str:
    """Returns the word that a value is a misspelling of, in whichever case; empty if it is near
    none."""
    lower = {word.lower(): word for word in words}
    found = difflib.get_close_matches(value.lower(), lower, n=1)
    return lower[found[0]] if found else ""


def _near_type(value: str, types: Sequence[str]) -> str:
    """As `near_word`, of an instance type. Another generation of a known family is near none."""
    family, known = _family(value), {_family(each) for each in types}
    generations = {re.sub(r"\d", "", each) for each in known}
    if family not in known and re.sub(r"\d", "", family) in generations:
        return ""
    like = family if family in known else near_word(family, known)
    return near_word(value, [each for each in types if _family(each) == like] or ())


def _family(instance_type: str) -> str:
    """Returns the family of `ml.g6.xlarge`, or of `g6.xlarge`: g6."""
    return instance_type.removeprefix("ml.").partition(".")[0]


def missing(settings: dict[str, str | None]) -> Iterator[str]:
    """Yields a line for each setting without a value, with what to do."""
    for key, value in settings.items():
        if not value:
            yield f"{key} is missing; {HINTS[key]}"


# The launch config


def role_problems(role: str | None) -> Iterator[str]:
    """Yields what is wrong with the role of a job: often its name is given, as in the console."""
    yield from missing({"job.role": role})
    if role and not role.startswith("arn:"):
        yield (
            f"job.role={role}: must be the role's ARN, arn:aws:iam::ACCOUNT:role/NAME; "
            f"`aws iam get-role --role-name {role}` prints it"
        )


def launch_problems(config: LaunchConfig, region: str | None) -> Iterator[str]:
    """Yields what is wrong with the launch config of a training job; `region` is None if
    unknown."""
    target, job = config.target, config.job
    yield from role_problems(job.role)
    yield from missing({"job.output": job.output})
    yield from registry_problems(target, region)
    if job.output and not job.output.startswith("s3://"):
        yield f"job.output={job.output}: must be s3://bucket/prefix"
    if job.name in (KEPT, own_code.CHANNEL):
        yield f"job.name={job.name}: that folder of job.output is for every job's; choose another"
    earlier = config.resume_from or ""
    if "/" in earlier and not earlier.startswith("s3://"):
        yield f"resume_from={earlier}: must be the name of a job, or s3://bucket/prefix"
    for name, channel in job.channels.items():
        yield from _channel_problems(f"job.channels.{name}", channel)


def _channel_problems(key: str, channel: Channel) -> Iterator[str]:
    if channel.source.get("S3DataSource", {}).get("S3DataType") == "AugmentedManifestFile":
        yield (
            f"{key}.source: an AugmentedManifestFile needs Pipe mode, and the job reads files; "
            "list the images in a table (data=manifest)"
        )
    prefix = channel.s3
    if bool(prefix) == bool(channel.source):
        yield f"{key}: must have s3 or source, and not both"
    elif prefix and not prefix.startswith("s3://"):
        yield (
            f"{key}={prefix}: must be s3://bucket/prefix; copy a folder there: "
            f"{make('upload', {}, prefix, 's3://bucket/prefix')}"
        )
    elif prefix and channel.mode == "FastFile" and not prefix.endswith("/"):
        yield f"{key}.s3={prefix}: must end in / in FastFile mode"


def is_gpu(instance_type: str) -> bool:
    """Returns whether instances of this type have NVIDIA GPUs."""
    return bool(_GPU_FAMILY.match(instance_type))


def registry_problems(target: Target, region: str | None) -> Iterator[str]:
    """Yields what is wrong with the image's location and tag; `region` is None if unknown."""
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
    resources = input_shape("CreateTrainingJob").members["ResourceConfig"]
    types = resources.members["InstanceType"].enum
    meant = "" if kind in types else _near_type(kind, types)
    if not kind.startswith("ml."):
        hint = meant or f"ml.{kind.lower()}"
        yield f"target.instance_type={kind}: must be a type of SageMaker's; did you mean {hint}?"
    if meant or not kind.startswith("ml."):  # no image is made for a type that is misspelt
        return
    device, other = ("GPU", "CPU") if is_gpu(kind) else ("CPU", "GPU")
    if match and match["tag"] and _DEVICE_IN_TAG[other].search(match["tag"]):
        remedy = f"`make image push DEVICE={device.lower()}` makes one for it"
        yield f"{image}: its tag is for {other}s, but {kind} is a {device} type; {remedy}"


# What the finished request means, which `job.request` may have changed


def type_errors(request: dict[str, Any], operation: str) -> list[str]:
    """Returns a line for each member that is missing or has another type than botocore sends."""
    from botocore.validate import ParamValidator

    report: str = ParamValidator().validate(request, input_shape(operation)).generate_report()
    return report.splitlines()


def as_sent(config: LaunchConfig, request: dict[str, Any]) -> LaunchConfig:
    """Returns the config with what the request has: image, role, machines, channels."""
    resources, algorithm = request["ResourceConfig"], request["AlgorithmSpecification"]
    groups = resources.get("InstanceGroups", [])
    target = replace(
        config.target,
        image=algorithm.get("TrainingImage"),
        instance_type=resources.get("InstanceType", config.target.instance_type),
        instance_count=sum(each.get("InstanceCount", 0) for each in [resources, *groups]) or 1,
    )
    job = replace(config.job, role=request["RoleArn"])
    if "InputDataConfig" in config.job.request:
        sent = request.get("InputDataConfig", [])
        job = replace(job, channels={each["ChannelName"]: _channel_of(each) for each in sent})
    return replace(config, target=target, job=job)


def _channel_of(sent: dict[str, Any]) -> Channel:
    prefix = sent["DataSource"].get("S3DataSource", {})
    if prefix.get("S3DataType") != "S3Prefix":
        return Channel(source=sent["DataSource"])
    is_streamed = sent.get("InputMode") == "FastFile"
    return Channel(
        s3=prefix["S3Uri"],
        mode="FastFile" if is_streamed else "File",
        distribution=prefix.get("S3DataDistributionType", "FullyReplicated"),
    )


def request_problems(request: dict[str, Any]) -> Iterator[str]:
    """Yields what AWS accepts in a training job's request, and the job does not heed."""
    for member, folder in WRITTEN.items():
        path = request.get(member, {}).get("LocalPath", folder)
        if PurePosixPath(path) != PurePosixPath(folder):
            yield (
                f"job.request.{member}.LocalPath={path}: the job writes to {folder}, and nothing "
                "else would be uploaded while it runs; drop it"
            )
    if request["OutputDataConfig"].get("CompressionType") == "NONE":
        yield (
            "job.request.OutputDataConfig.CompressionType=NONE: deploy, predict and download "
            "read the model from model.tar.gz; drop it"
        )
    algorithm = request["AlgorithmSpecification"]
    for channel in request.get("InputDataConfig", []):
        if channel.get("InputMode", algorithm["TrainingInputMode"]) == "Pipe":
            key = f"job.request.InputDataConfig.{channel['ChannelName']}.InputMode"
            yield f"{key}=Pipe: the job reads files; must be File or FastFile"
    arguments = algorithm.get("ContainerArguments", ["train"])
    if arguments[:1] != ["train"] and "ContainerEntrypoint" not in algorithm:
        member = "job.request.AlgorithmSpecification.ContainerArguments"
        yield f"{member}={arguments}: must begin with train; overrides may follow"
    yield from environment_problems(request)


def environment_problems(request: dict[str, Any]) -> Iterator[str]:
    """Yields the variables of a job that would lead it to another folder than AWS uploads."""
    root = request.get("Environment", {}).get("ML_ROOT", str(CONTAINER_ROOT))
    if PurePosixPath(root) != PurePosixPath(CONTAINER_ROOT):
        yield f"job.environment.ML_ROOT={root}: SageMaker reads and fills {CONTAINER_ROOT}; drop it"


def typed(line: str, given: dict[str, Any]) -> str:
    """Returns a line on a setting with the member of `job.request`, if its value is from there."""
    if "InputDataConfig" in given and "job.channels." in line:
        line = re.sub(r"^job\.channels\.", "job.request.InputDataConfig.", line)
        if "job.channels." in line:
            line += "; job.request.InputDataConfig replaces all of job.channels"
    for member, key in _SETTINGS.items():
        if key and re.match(rf"{re.escape(key)}[= :]", line) and member_of(given, member):
            return f"job.request.{member}{line[len(key) :]}"
    return line


def member_of(given: Any, path: str) -> Any:
    """Returns the member at a path such as `ResourceConfig.InstanceType`; None without it."""
    for name in path.split("."):
        given = given.get(name) if isinstance(given, dict) else None
    return given


def warn_of_outputs(places: dict[str, str | None], output: str | None) -> None:
    """Say which prefixes are outside of job.output, where the template's role may not write.

    Another role may, so this is no error.
    """
    for key, uri in places.items():
        if uri and output and not f"{uri}/".startswith(f"{output.rstrip('/')}/"):
            sys.stderr.write(
                f"{key}={uri}: outside of job.output={output}; the role of `make setup-aws` may "
                "write below its OutputPrefix only, and the job would fail when it uploads; choose "
                "a prefix below job.output, unless job.role may write here\n"
            )


# The job's own config


def job_problems(train: TrainConfig, launch: LaunchConfig) -> Iterator[str]:
    """Yields what would end the training job before its first step."""
    target, job = launch.target, launch.job
    yield from _missing_inputs(train, job.channels)
    yield from _rank_problems(train, target.instance_count)
    yield from _sharding_problems(job, target.instance_count)


def _rank_problems(train: TrainConfig, hosts: int) -> Iterator[str]:
    """The ranks of all hosts share a batch equally. How many GPUs a host has, the job knows."""
    try:
        check_ranks(
            train.trainer, hosts * (train.trainer.nproc_per_host or 1), train.optim.accumulate
        )
    except ConfigError as error:
        yield f"{error} on {hosts} {'host' if hosts == 1 else 'hosts'}"


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
        if data.root is None and not holds_data(channels):
            yield (
                f"data={data.format}: data.root is not set and there is no channel {DATA_CHANNEL}; "
                f"add {_channel(DATA_CHANNEL)}"
            )
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
    elif weights is not None:
        # The job looks up a folder among its channels, and a file at its path.
        folder = PurePosixPath(weights)
        named = not folder.suffix and (len(folder.parts) == 1 or folder.parts[0] in channels)
        yield from _missing_path("model.weights", weights, channels, CHANNELS if named else None)


def holds_data(channels: Collection[str]) -> bool:
    """Returns whether a job finds a dataset in these channels, see `RunFolder.has_data`."""
    return DATA_CHANNEL in channels or "train" in channels


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
    """Returns whether an absolute path means a folder of the host: an image has such below /opt
    only."""
    if path.is_relative_to("/opt"):
        return False
    homes = ("/home", "/Users", "/root", Path.home())
    exists = os.path.exists(path)  # noqa: PTH110 - Path.exists raises if a name is too long
    return exists or any(path.is_relative_to(home) for home in homes)


def _channel(name: str) -> str:
    return f"job.channels.{name}=s3://bucket/prefix/"
