"""Launching training jobs: read the overrides, check all that can be known, send the request."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from botocore import xform_name

from entry_point.config.hyperparameters import decode, encode
from entry_point.config.train_config import TrainConfig, load_train_config
from entry_point.job import own_code
from entry_point.job.program import UserError
from launch.own_code import OwnCode, collect, require_free_channel
from launch.sagemaker import training_request
from launch.sagemaker.aws import aws_client, print_request, region_of, session_unless_dry
from launch.sagemaker.checks import (
    as_sent,
    holds_data,
    job_problems,
    launch_problems,
    request_problems,
    require_sendable,
    type_errors,
    typed,
    warn_of_outputs,
)
from launch.sagemaker.config import Channel, LaunchConfig, load_launch_config
from launch.sagemaker.jobs import Job, checkpoints_uri, find_job, require_archive
from launch.sagemaker.s3 import require_objects, require_region, send_code, split_s3

OPERATION = "CreateTrainingJob"
CODE_TAG = "code"


@dataclass(frozen=True)
class TrainingSpec:
    """What a launch trains."""

    config: LaunchConfig
    overrides: list[str]
    """Those of the job."""
    train: TrainConfig
    """The job's config, as it will compose it of the overrides."""
    code: OwnCode | None
    """What `job.code=true` sends."""

    def require_valid(self, region: str | None) -> None:
        """Raise UserError with one line for each problem; `region` is None if unknown."""
        request, given = self.request(), self.config.job.request
        found, sent = list[str](), self
        if not type_errors(request, OPERATION):
            sent = self.as_sent(request)
            found += request_problems(request)
        found += launch_problems(sent.config, region)
        found += job_problems(sent.train, sent.config)
        if found:
            raise UserError(*(typed(line, given) for line in found))
        require_sendable(request, OPERATION, given)

    def as_sent(self, request: dict[str, Any]) -> TrainingSpec:
        """Returns what the request trains, read as the job reads it. Raises UserError."""
        if not self.config.job.request:
            return self
        config = as_sent(self.config, request)
        overrides = decode(request.get("HyperParameters", {}))
        algorithm = request["AlgorithmSpecification"]
        if "ContainerEntrypoint" not in algorithm:
            overrides += algorithm.get("ContainerArguments", [])[1:]
        train, _ = load_train_config(overrides, has_channels=holds_data(config.job.channels))
        return replace(self, config=config, train=train)

    def request(self, name: str | None = None) -> dict[str, Any]:
        """Returns the request for a job; None: with `job.name`, or a new name."""
        name = name or training_request.job_name(self.config.job)
        metrics = self.train.task.metrics
        return training_request.build(self.config, self.overrides, name, metrics)


def load_spec(arguments: Sequence[str]) -> TrainingSpec:
    """Read the overrides of a launch, and the code that `job.code=true` sends; raises UserError."""
    config, overrides = load_launch_config(arguments, TrainConfig)
    read_by_job = decode(encode(overrides))
    train, _ = load_train_config(read_by_job, has_channels=holds_data(config.job.channels))
    if not config.job.code:
        return TrainingSpec(config, overrides, train, None)
    code = collect()
    return TrainingSpec(with_code(config, code), overrides, train, code)


def with_code(config: LaunchConfig, code: OwnCode) -> LaunchConfig:
    """Returns the config with the channel, the variable and the tag of a job with this code.

    Raises UserError if a channel of the user's has the name of the code's.
    """
    job = config.job
    require_free_channel(job.channels, "job.channels")
    channels = {**job.channels}
    if job.output:
        prefix = f"{job.output.rstrip('/')}/code/{code.hash}/"
        channels[own_code.CHANNEL] = Channel(s3=prefix, mode="File")
    environment = {**job.environment, own_code.HASH: code.hash}
    tags = {CODE_TAG: code.hash, **job.tags}
    return replace(config, job=replace(job, channels=channels, environment=environment, tags=tags))


def launch(arguments: Sequence[str]) -> Job | None:
    """Send the checked request; a dry run prints it, without any call, and returns None.

    Raises UserError with one line for each problem; AWS errors pass through.
    """
    spec = load_spec(arguments)
    session = session_unless_dry()
    prepare(spec, session)
    request = spec.request()
    submit(session, OPERATION, request)
    if session is None:
        return None
    name = request["TrainingJobName"]
    sys.stdout.write(f"job {name} created\n")
    sys.stdout.writelines(f"  {line}\n" for line in next_steps(name, session.region_name))
    return Job(session, name)


def submit(session: Any, operation: str, request: dict[str, Any]) -> None:
    """Send a checked request to SageMaker; without a session, print it."""
    if session is None:
        print_request(request)
    else:
        getattr(aws_client(session, "sagemaker"), xform_name(operation))(**request)


def find_trained(name: str, config: LaunchConfig, session: Any) -> dict[str, Any]:
    """SageMaker's description of a training job with a model; raises UserError.

    Without a session, as far as it is known without AWS: what a job of this config leaves, with
    placeholders for image, role and output that the config lacks.
    """
    if session is None:
        planned = training_request.build(config, [], name)
        planned["AlgorithmSpecification"].setdefault("TrainingImage", f"IMAGE-OF-{name}")
        planned.setdefault("RoleArn", f"arn:aws:iam::000000000000:role/ROLE-OF-{name}")
        output = (config.job.output or f"s3://OUTPUT-OF-{name}").rstrip("/")
        planned["ModelArtifacts"] = {"S3ModelArtifacts": f"{output}/{name}/output/model.tar.gz"}
        require_archive(planned)
        return planned
    job, description = find_job(session, name)
    if job.kind != "Training":
        raise UserError(f"{name}: is a {job.kind} job, and only training jobs leave a model")
    if not description.get("ModelArtifacts", {}).get("S3ModelArtifacts"):
        raise UserError(f"{name}: has no model, the job is {job.state(description)}")
    require_archive(description)
    return description


def prepare(spec: TrainingSpec, session: Any) -> None:
    """Check all that is possible now, and upload the code; without a session, ask AWS nothing.

    Completes the spec's config with the checkpoints to resume from, which only AWS knows. Raises
    UserError with one line for each problem; AWS errors pass through.
    """
    config = spec.config
    spec.require_valid(region_of(session))
    if session and config.resume_from and not config.resume_from.startswith("s3://"):
        config.resume_from = _checkpoints_of(config.resume_from, session)
    request = spec.request()
    if session:
        _require_buckets(config, session)
        require_objects(aws_client(session, "s3"), _inputs(request, config))
    _warn_of_outputs(request, config)
    if session and spec.code:
        send_code(spec.code, config.job.channels[own_code.CHANNEL].s3 or "", session)


def _warn_of_outputs(request: dict[str, Any], config: LaunchConfig) -> None:
    places = {
        f"job.request.{member}.{name}": request.get(member, {}).get(name)
        for member, name in (
            ("OutputDataConfig", "S3OutputPath"),
            ("CheckpointConfig", "S3Uri"),
            ("TensorBoardOutputConfig", "S3OutputPath"),
        )
    }
    if config.resume_from and "CheckpointConfig" not in config.job.request:
        places["resume_from"] = places.pop("job.request.CheckpointConfig.S3Uri")
    warn_of_outputs(places, config.job.output)


def _inputs(request: dict[str, Any], config: LaunchConfig) -> dict[str, str]:
    """S3 prefixes that must hold objects, by their setting; without the code, which is sent."""
    found = {"resume_from": config.resume_from} if config.resume_from else {}
    for channel in request.get("InputDataConfig", []):
        name, source = channel["ChannelName"], channel["DataSource"].get("S3DataSource")
        if source and not (config.job.code and name == own_code.CHANNEL):
            found[typed(f"job.channels.{name}", config.job.request)] = source["S3Uri"]
    return found


def _require_buckets(config: LaunchConfig, session: Any) -> None:
    """Raise UserError if a bucket that the job writes to is elsewhere, or does not exist.

    Otherwise the job would lose its checkpoints or, at its end, its model.
    """
    from botocore.exceptions import ClientError

    s3 = aws_client(session, "s3")
    for key, uri in {"job.output": config.job.output, "resume_from": config.resume_from}.items():
        if not uri:
            continue
        bucket, _ = split_s3(uri, key)
        try:
            require_region(s3, s3.head_bucket(Bucket=bucket), f"{key}={uri}")
        except ClientError as error:
            # The job's role may have the access that the caller lacks (403).
            if error.response["Error"]["Code"] == "404":
                raise UserError(f"{key}={uri}: there is no bucket {bucket}") from error


def next_steps(name: str, region: str) -> list[str]:
    """Returns the commands for a job, and its page in the console."""
    domains = {"cn": "amazonaws.cn", "us-gov": "amazonaws-us-gov.com"}
    domain = domains.get(region.rsplit("-", 2)[0], "aws.amazon.com")
    return [
        f'make sagemaker ARGS="status {name}"     make sagemaker ARGS="logs {name} --follow"',
        f'make sagemaker ARGS="download {name}"   make sagemaker ARGS="stop {name}"',
        f"https://{region}.console.{domain}/sagemaker/home?region={region}#/jobs/{name}",
    ]


def _checkpoints_of(name: str, session: Any) -> str:
    """Returns the S3 prefix of an earlier job's checkpoints; raises UserError if it cannot be
    resumed."""
    found = aws_client(session, "sagemaker").describe_training_job(TrainingJobName=name)
    if found["TrainingJobStatus"] in ("InProgress", "Stopping"):
        raise UserError(
            f"resume_from={name}: that job is {found['TrainingJobStatus']}, and two jobs must not "
            "write to the same checkpoints; wait until it ends, or stop it: "
            f'make sagemaker ARGS="stop {name}"'
        )
    uri = checkpoints_uri(found)
    if not uri:
        raise UserError(f"resume_from={name}: that job has no checkpoints")
    return uri
