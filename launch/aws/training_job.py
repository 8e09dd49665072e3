"""Launching one training job: load the config, check the request, print or send it."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from entry_point.config.own_code import CHANNEL
from launch.aws.sagemaker_job import Job
from launch.aws.session import aws_client, is_dry_run, open_session, print_request
from launch.request import job_config, training_checks, training_request
from launch.request.code.code_channel import tag_revision, with_code
from launch.request.code.code_files import OwnCode, collect
from launch.request.launch_config import LaunchConfig
from launch.request.launch_errors import LaunchError
from launch.request.launch_overrides import load_launch_config


def launch(arguments: Sequence[str]) -> Job | None:
    """Send the checked request with the installed SDK; a dry run prints it and returns None."""
    config, overrides = load_launch_config(arguments)
    code = _own_code() if config.job.code else None
    if code:
        config = with_code(config, code)
    if is_dry_run():
        print_request(_checked_request(config, overrides, config.job.region))
        return None
    from launch.aws.cost import estimate_cost
    from launch.aws.ecr import require_image
    from launch.aws.preflight import require_buckets, require_role
    from launch.aws.s3.code_upload import send_code
    from launch.aws.sdk.send import installed_version, send_request

    installed_version()
    session = open_session(config.job.region)
    if config.resume_from:
        config.job.checkpoints = _checkpoints_of(config.resume_from, session)
    request = _checked_request(config, overrides, session.region_name)
    image_tags = require_image(config.target, session)
    require_role(request["RoleArn"], session)
    require_buckets(training_checks.s3_prefixes(config.job), session)
    sys.stdout.write(estimate_cost(config.target, session) + "\n")
    if code:
        tag_revision(request, image_tags)
        send_code(code, config.job.channels[CHANNEL].s3, session)
    send_request(request, session)
    name: str = request["TrainingJobName"]
    sys.stdout.write(f"job {name} created\n")
    for line in next_steps(name, session.region_name):
        sys.stdout.write(f"  {line}\n")
    return Job(session, name)


def _own_code() -> OwnCode:
    """What `job.code=true` sends; a line on stderr for each file that it does not."""
    code = collect()
    sys.stderr.writelines(f"{line}\n" for line in code.left_out)
    return code


def next_steps(name: str, region: str) -> list[str]:
    """The commands for a job, and its page in the console."""
    domain = "amazonaws.cn" if region.startswith("cn-") else "aws.amazon.com"
    return [
        f'make sagemaker ARGS="status {name}"     make sagemaker ARGS="logs {name} --follow"',
        f'make sagemaker ARGS="download {name}"   make sagemaker ARGS="stop {name}"',
        f"https://{region}.console.{domain}/sagemaker/home?region={region}#/jobs/{name}",
    ]


def _checked_request(
    config: LaunchConfig, overrides: Sequence[str], region: str | None
) -> dict[str, Any]:
    name = training_request.job_name(config.job, datetime.now(UTC))
    metrics = job_config.own_metrics(overrides)
    request = training_request.build(config, overrides, name, metrics)
    problems = job_config.training_problems(overrides, config.job.channels, config.target)
    training_checks.check(request, config, region, problems)
    return request


def _checkpoints_of(name: str, session: Any) -> str:
    """The S3 prefix of an earlier job's checkpoints; raises LaunchError if it cannot be resumed."""
    found = aws_client(session, "sagemaker").describe_training_job(TrainingJobName=name)
    if found["TrainingJobStatus"] in ("InProgress", "Stopping"):
        raise LaunchError(
            f"resume_from={name}: that job is {found['TrainingJobStatus']}, and two jobs must not "
            "write to the same checkpoints; wait until it ends, or stop it: "
            f'make sagemaker ARGS="stop {name}"'
        )
    uri: str | None = found.get("CheckpointConfig", {}).get("S3Uri")
    if not uri:
        raise LaunchError(f"resume_from={name}: that job has no checkpoints")
    return uri
