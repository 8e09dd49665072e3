"""The launch config: on which machines (`target`) and as what (`job`) a job runs on SageMaker."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from entry_point.config.compose import load_config
from entry_point.config.config_errors import ConfigError
from entry_point.config.overrides import parse_overrides
from entry_point.config.schema import SETTINGS, Bool, Count, Int
from entry_point.config.train_config import TrainConfig
from entry_point.job.program import UserError


@dataclass(config=SETTINGS)
class Target:
    """The machines of a job, and how long it may use them."""

    image: str | None = None
    """ECR URI of the image. `make push` prints it."""
    instance_type: str = "ml.c7i.2xlarge"
    """SageMaker instance type. One with GPUs also sets `trainer.device=cuda`."""
    instance_count: Count = 1
    """Number of instances."""
    volume_gb: Count = 50
    """Size of the EBS volume in GB. Instance types with a local NVMe disk use that instead."""
    max_runtime_s: Int = Field(default=86400, ge=1, le=28 * 86400)
    """Seconds after which SageMaker stops the job; 28 days at most."""
    spot: Bool = False
    """Use spot instances. An interrupted job resumes from its checkpoints."""


@dataclass(config=SETTINGS)
class Channel:
    """One input of a job, in the container at `/opt/ml/input/data/<name>`.

    `job.channels.NAME=s3://bucket/prefix/` is short for `job.channels.NAME.s3=s3://bucket/prefix/`.
    """

    s3: str | None = None
    """S3 prefix. In FastFile mode it ends in `/`."""
    source: dict[str, Any] = Field(default={})
    """Another DataSource than an S3 prefix, as CreateTrainingJob takes it, such as
    `{FileSystemDataSource: {FileSystemId: fs-..., ...}}`. It is mounted: `mode` does not count."""
    mode: Literal["File", "FastFile"] = "FastFile"
    """`File`: everything is copied before the job starts. `FastFile`: files are streamed as they
    are read."""
    distribution: Literal["FullyReplicated", "ShardedByS3Key"] = "FullyReplicated"
    """`FullyReplicated`: each host gets all objects. `ShardedByS3Key`: each host gets its share;
    refused with several hosts, as training reads all on each."""


def _from_prefix(channel: object) -> object:
    """A channel that is only an S3 prefix has the default fields."""
    return {"s3": channel} if isinstance(channel, str) else channel


@dataclass(config=SETTINGS)
class Job:
    """The job's name, role, inputs, outputs and network."""

    name: str | None = None
    """Name of the job. null: `image-training` and the time."""
    role: str | None = None
    """ARN of the role that the job runs under. `make setup-aws` creates one."""
    output: str | None = None
    """S3 prefix. The job's results go below `OUTPUT/JOB-NAME/`, its checkpoints below
    `OUTPUT/checkpoints/JOB-NAME/`."""
    channels: dict[str, Annotated[Channel, BeforeValidator(_from_prefix)]] = Field(default={})
    """Inputs: each name with an S3 prefix, or with the fields of a channel."""
    code: Bool = False
    """Send `project/` and `configs/` with the job, in a channel `code`, and run these instead of
    the image's. They are uploaded below `OUTPUT/code/`, once per content. `make docker-train` takes
    this key too."""
    environment: dict[str, str] = Field(default={})
    """Environment variables of the container."""
    tags: dict[str, str] = Field(default={})
    """AWS tags of the job, besides `project`, which this can replace, and `commit`.
    `job.request.Tags=null` sends none."""
    network: dict[str, Any] = Field(default={})
    """What the job may reach: `{VpcConfig: {Subnets: [...], SecurityGroupIds: [...]},
    EnableNetworkIsolation: true}`, each as AWS takes it."""
    kms_key: str | None = None
    """KMS key of the EBS volumes and of the output in S3. For instance types with local NVMe disks,
    which their hardware encrypts, add `job.request.ResourceConfig.VolumeKmsKeyId=null`."""
    request: dict[str, Any] = Field(default={})
    """Any other members of CreateTrainingJob, or of CreateProcessingJob, merged into the request;
    null removes one. docs/launch.md has examples."""


@dataclass(config=SETTINGS)
class LaunchConfig:
    """A job on SageMaker."""

    target: Target = Field(default_factory=Target)
    job: Job = Field(default_factory=Job)
    resume_from: str | None = None
    """Name of an earlier job from whose checkpoints to resume, or the S3 prefix of checkpoints."""


@dataclass(config=SETTINGS)
class DeployConfig:
    """An endpoint that answers requests with the model of a training job."""

    name: str | None = None
    """Name of the new endpoint. null: the job's name."""
    instance_type: str | None = None
    """SageMaker instance type. null: ml.c7i.xlarge, or ml.g6.xlarge if the job trained on GPUs."""
    variant: dict[str, Any] = Field(default={})
    """Any members of CreateEndpointConfig's production variant, merged into it; null removes one.
    With `ServerlessConfig` it has no instances. docs/launch.md has examples."""
    request: dict[str, Any] = Field(default={})
    """Any other members of CreateEndpointConfig, merged into the request."""
    environment: dict[str, str] = Field(default={})
    """Environment variables of the container."""
    unfinished: Bool = False
    """Also deploy the model of a job that was stopped before its training ended."""


_LAUNCH_KEYS = {item.name for item in fields(LaunchConfig)}
# A channel that is only an S3 prefix.
_SHORT = re.compile(r"(\+*job\.channels\.[^.=]+)=(?!\{)")


def load_launch_config(
    arguments: Sequence[str], job_schema: type = TrainConfig
) -> tuple[LaunchConfig, list[str]]:
    """Return the launch config, and the overrides of the job, which has the settings `job_schema`.

    Raises ConfigError, also for a key of the job that looks like a misspelt one of the launch.
    """
    launch: list[str] = []
    job: list[str] = []
    known = {*_LAUNCH_KEYS, "experiment", *(item.name for item in fields(job_schema))}
    for text, override in zip(arguments, parse_overrides(arguments), strict=True):
        if override.is_sweep_override():
            message = "has several values; start a job for each, or see examples/tuner.ipynb; "
            message += r"write a text as \'A,B\'"
            raise ConfigError(text, message=message)
        key = override.key_or_group.replace("/", ".")
        first = key.partition(".")[0]
        # A deployment takes its machines and role from a job, rather than from these keys.
        is_launch = job_schema is not DeployConfig
        if is_launch and first not in known and (meant := _meant(key, override.value())):
            message = f"no such key; did you mean {meant}?"
            raise ConfigError(override.key_or_group, override.value(), message)
        if first in _LAUNCH_KEYS:
            launch.append(_SHORT.sub(r"\1.s3=", text))
        else:
            job.append(text)
    return load_config("launch", LaunchConfig, launch), job


def _meant(key: str, value: object) -> str:
    """Returns `job.role` for `role` and for `jbo.role`; a channel for a name with an S3 prefix;
    empty if it is near no key."""
    first, dot, rest = key.partition(".")
    for name, group in {"target": Target, "job": Job}.items():
        if first in {item.name for item in fields(group)}:
            return f"{name}.{key}"
    if match := difflib.get_close_matches(first, _LAUNCH_KEYS, n=1):
        return f"{match[0]}{dot}{rest}"
    return f"job.channels.{key}" if str(value).startswith("s3://") and not dot else ""


def split_name(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return the one name of a job, or URI of a model, among the arguments, and the overrides.

    Raises UserError without a name, and for several.
    """
    names = [each for each in arguments if "=" not in each or each.startswith("s3://")]
    if len(names) != 1:
        raise UserError(
            f"{' '.join(names) or 'no job given'}: must be the name of one job; "
            "`make sagemaker ARGS=status` lists the latest"
        )
    return names[0], [each for each in arguments if each not in names]
