"""Launching training jobs: load the config, check the request, print it or bind it to the SDK."""

import sys
from collections.abc import Sequence
from typing import Any

from launch.aws.sagemaker_job import Job, checkpoints_uri
from launch.aws.session import aws_client, is_dry_run, open_session, print_request
from launch.aws.training_spec import TrainingJobs, TrainingSpec, load_spec
from launch.request import job_config, training_checks
from launch.request.code.code_channel import revision_tag
from launch.request.launch_errors import LaunchError


def launch(arguments: Sequence[str]) -> Job | None:
    """Send the checked request with the installed SDK; a dry run prints it and returns None."""
    if is_dry_run():
        spec = load_spec(arguments)
        print_request(spec.request(spec.config.job.region))
        return None
    from launch.aws.batch_queue import submit
    from launch.aws.sdk.send import open_trainer, start

    jobs = prepare(arguments)
    if queue := jobs.spec.config.job.queue:
        number, name = submit(jobs), jobs.request["TrainingJobName"]
        sys.stdout.write(f"job {name} waits in the queue {queue} as AWS Batch job {number}\n")
        return None
    start(open_trainer(jobs))
    name = jobs.request["TrainingJobName"]
    sys.stdout.write(f"job {name} created\n")
    for line in next_steps(name, jobs.session.region_name):
        sys.stdout.write(f"  {line}\n")
    return Job(jobs.session, name)


def prepare(arguments: Sequence[str]) -> TrainingJobs:
    """Check everything that can be known before a job exists, and print what an hour costs.

    Raises LaunchError or ConfigError with one line for each problem; AWS errors pass through.
    """
    return prepare_spec(load_spec(arguments))


def prepare_spec(spec: TrainingSpec) -> TrainingJobs:
    """`prepare` for a spec that has been read."""
    from launch.aws.cost import estimate_cost
    from launch.aws.ecr import require_extras, require_image
    from launch.aws.preflight import other_account, require_buckets, require_role
    from launch.aws.sdk.send import installed_version

    installed_version()
    session = open_session(spec.config.job.region)
    if spec.config.resume_from:
        spec = spec.with_checkpoints(_checkpoints_of(spec.config.resume_from, session))
    request = spec.request(session.region_name)
    image_tags = require_image(spec.config.target, session)
    require_role(request["RoleArn"], session)
    if warning := other_account(request["RoleArn"], spec.config.target.image or ""):
        sys.stderr.write(f"{warning}\n")
    require_extras(spec.config.target, job_config.extras_of_image(spec.overrides), session)
    require_buckets(training_checks.s3_prefixes(spec.config.job), session)
    sys.stdout.write(estimate_cost(spec.config.target, session) + "\n")
    if spec.code:
        for key, value in revision_tag(image_tags).items():
            spec.config.job.tags.setdefault(key, value)
    return TrainingJobs(spec, session, request)


def next_steps(name: str, region: str) -> list[str]:
    """The commands for a job, and its page in the console."""
    domain = "amazonaws.cn" if region.startswith("cn-") else "aws.amazon.com"
    return [
        f'make sagemaker ARGS="status {name}"     make sagemaker ARGS="logs {name} --follow"',
        f'make sagemaker ARGS="download {name}"   make sagemaker ARGS="stop {name}"',
        f"https://{region}.console.{domain}/sagemaker/home?region={region}#/jobs/{name}",
    ]


def _checkpoints_of(name: str, session: Any) -> str:
    """The S3 prefix of an earlier job's checkpoints; raises LaunchError if it cannot be resumed."""
    found = aws_client(session, "sagemaker").describe_training_job(TrainingJobName=name)
    if found["TrainingJobStatus"] in ("InProgress", "Stopping"):
        raise LaunchError(
            f"resume_from={name}: that job is {found['TrainingJobStatus']}, and two jobs must not "
            "write to the same checkpoints; wait until it ends, or stop it: "
            f'make sagemaker ARGS="stop {name}"'
        )
    uri = checkpoints_uri(found)
    if not uri:
        raise LaunchError(f"resume_from={name}: that job has no checkpoints")
    return uri
