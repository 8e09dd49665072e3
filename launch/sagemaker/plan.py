"""A training job as it will be: what is printed, checked and sent is one `Plan`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from entry_point.config.hyperparameters import decode
from entry_point.config.train_config import TrainConfig, load_train_config
from entry_point.job import own_code
from entry_point.job.metrics_line import metric_regexes
from entry_point.job.program import UserError
from entry_point.job.run_folder import PER_JOB, data_channels
from launch.own_code import OwnCode, collect, require_free_channel
from launch.sagemaker.aws import aws_client, creating
from launch.sagemaker.config import Channel, LaunchConfig, load_launch_config
from launch.sagemaker.jobs import checkpoints_uri, find_job, unfinished_jobs
from launch.sagemaker.s3 import send_code
from launch.sagemaker.training_request import BASE_NAME, build, require_types, stamped


@dataclass(frozen=True)
class Plan:
    """One request, and what it means."""

    request: dict[str, Any]
    """The members of CreateTrainingJob."""
    config: LaunchConfig
    """`resume_from` is the S3 prefix, where AWS was asked for it."""
    train: TrainConfig
    """The job's own config, as the job will read the request."""
    code: OwnCode | None
    """The code that `job.code=true` sends."""

    @property
    def channels(self) -> dict[str, dict[str, Any]]:
        """The job's inputs as they are sent, by name."""
        return {each["ChannelName"]: each for each in self.request.get("InputDataConfig", [])}


def plan(
    arguments: Sequence[str], session: Any, *, for_sdk: bool = False, in_pipeline: bool = False
) -> Plan:
    """Returns the job for the overrides; without a session, as far as it is known without AWS.

    `for_sdk`: one object of the SDK starts several jobs with this request. Each has a new name, and
    keeps its checkpoints below that name, in a prefix that is new for each plan. `in_pipeline`: the
    plan of the same overrides is always the same, as a pipeline's definition must be.

    Raises UserError with one line for each mistake; AWS errors pass through.
    """
    config, overrides = load_launch_config(arguments)
    code = collect() if config.job.code else None
    if code:
        config = with_code(config, code)
    if for_sdk and not config.resume_from:
        environment = {PER_JOB: "true", **config.job.environment}
        config = replace(config, job=replace(config.job, environment=environment))
    config = replace(config, resume_from=_checkpoints(config.resume_from, session))
    base = config.job.name or BASE_NAME
    is_name = in_pipeline or (config.job.name and not for_sdk)
    request = build(config, overrides, base if is_name else stamped(base))
    require_types(request, "CreateTrainingJob")
    train = _as_read_by_the_job(request)
    if "MetricDefinitions" not in config.job.request.get("AlgorithmSpecification", {}):
        regexes = metric_regexes(train.task.name, train.task.metrics)
        metrics = [{"Name": name, "Regex": regex} for name, regex in regexes.items()]
        request["AlgorithmSpecification"]["MetricDefinitions"] = metrics
    return Plan(request, config, train, code)


def with_code(config: LaunchConfig, code: OwnCode) -> LaunchConfig:
    """Returns the config with the channel, the variable and the tag of a job with this code.

    Raises UserError if a channel of the user's has the name of the code's.
    """
    job = config.job
    require_free_channel(job.channels, "job.channels")
    # The content's hash is in the prefix: a queued or restarted job keeps its code.
    prefix = f"{(job.output or 's3://OUTPUT').rstrip('/')}/code/{code.hash}/"
    channels = {**job.channels, own_code.CHANNEL: Channel(s3=prefix, mode="File")}
    environment = {**job.environment, own_code.HASH: code.hash}
    tags = {own_code.CHANNEL: code.hash, **job.tags}
    return replace(config, job=replace(job, channels=channels, environment=environment, tags=tags))


def _checkpoints(earlier: str | None, session: Any) -> str | None:
    """Returns the S3 prefix of an earlier job's checkpoints; without a session, `earlier` itself.

    Raises UserError for a job that cannot be resumed.
    """
    is_uri = earlier and earlier.startswith("s3://")
    if earlier and "/" in earlier and not is_uri:
        raise UserError(f"resume_from={earlier}: must be the name of a job, or s3://bucket/prefix")
    if not earlier or not session:
        return earlier
    uri = earlier if is_uri else checkpoints_uri(find_job(session, earlier)[1])
    if not uri:
        raise UserError(f"resume_from={earlier}: that job has no checkpoints")
    for name in unfinished_jobs(session):
        if checkpoints_uri(find_job(session, name)[1]) == uri.rstrip("/"):
            raise UserError(
                f"resume_from={earlier}: {name} has not ended, and two jobs must not write to the "
                "same checkpoints; wait until it ends, or stop it: "
                f'make sagemaker ARGS="stop {name}"'
            )
    return uri


def _as_read_by_the_job(request: dict[str, Any]) -> TrainConfig:
    """Returns the config that the job composes of its hyperparameters, arguments and channels."""
    overrides = decode(request.get("HyperParameters", {}))
    algorithm = request["AlgorithmSpecification"]
    if "ContainerEntrypoint" not in algorithm:
        overrides += algorithm.get("ContainerArguments", [])[1:]
    channels = [each["ChannelName"] for each in request.get("InputDataConfig", [])]
    has_channels = bool(data_channels(channels, overrides))
    return load_train_config(overrides, has_channels=has_channels, context="")[0]


def upload_code(planned: Plan, session: Any) -> None:
    """Send the code of `job.code=true`, if there is any, to the prefix of its channel."""
    if planned.code:
        send_code(planned.code, str(planned.config.job.channels[own_code.CHANNEL].s3), session)


def send(planned: Plan, session: Any) -> str:
    """Create the checked job; returns its name."""
    upload_code(planned, session)
    name: str = planned.request["TrainingJobName"]
    sagemaker = aws_client(session, "sagemaker")
    with creating(f"job {name}", f'make sagemaker ARGS="status {name}"'):
        sagemaker.create_training_job(**planned.request)
    return name
