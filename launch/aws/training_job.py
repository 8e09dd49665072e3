"""Launching training jobs: read the overrides, check all that can be known, send the request."""

import json
import sys
from collections.abc import Sequence
from typing import Any

from launch.aws.sagemaker_job import Job, checkpoints_uri
from launch.aws.session import aws_client, is_dry_run, open_session, print_request
from launch.aws.training_spec import TrainingSpec, load_spec
from launch.request import job_config, training_checks
from launch.request.code.code_channel import revision_tag
from launch.request.launch_errors import LaunchError

# AWS Batch stops a service job this long after SageMaker would have stopped it.
_QUEUE_SLACK_S = 3600


def launch(arguments: Sequence[str]) -> Job | None:
    """Send the checked request; a dry run prints it, without any call, and returns None.

    None also for a job that waits in `job.queue`. Raises LaunchError or ConfigError with one line
    for each problem; AWS errors pass through.
    """
    spec = load_spec(arguments)
    queue = spec.config.job.queue
    if is_dry_run():
        request = spec.request(spec.config.job.region)
        print_request(_submission(request, queue) if queue else request)
        return None
    spec, session = prepare(spec)
    request = spec.request(session.region_name)
    name = request["TrainingJobName"]
    if queue:
        submission = _submission(request, queue)
        submission["serviceRequestPayload"] = json.dumps(submission["serviceRequestPayload"])
        number = aws_client(session, "batch").submit_service_job(**submission)["jobId"]
        sys.stdout.write(f"job {name} waits in the queue {queue} as AWS Batch job {number}\n")
        return None
    aws_client(session, "sagemaker").create_training_job(**request)
    sys.stdout.write(f"job {name} created\n")
    for line in next_steps(name, session.region_name):
        sys.stdout.write(f"  {line}\n")
    return Job(session, name)


def prepare(spec: TrainingSpec) -> tuple[TrainingSpec, Any]:
    """The spec as it will be sent and a boto3 session, after every check that is possible now.

    Uploads the code that goes along. Raises LaunchError with one
    line for each problem; AWS errors pass through.
    """
    from launch.aws.ecr import require_extras, require_image
    from launch.aws.preflight import other_account, require_buckets, require_role

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
    if spec.code:
        for key, value in revision_tag(image_tags).items():
            spec.config.job.tags.setdefault(key, value)
        spec.upload_code(session)
    return spec, session


def _submission(request: dict[str, Any], queue: str) -> dict[str, Any]:
    """AWS Batch's SubmitServiceJob for a job that starts when the queue has capacity for it."""
    tags = {tag["Key"]: tag["Value"] for tag in request.get("Tags", [])}
    payload = {key: value for key, value in request.items() if key != "Tags"}
    stopping = request["StoppingCondition"]
    longest = stopping.get("MaxWaitTimeInSeconds", stopping["MaxRuntimeInSeconds"])
    return {
        "jobName": request["TrainingJobName"],
        "jobQueue": queue,
        "serviceJobType": "SAGEMAKER_TRAINING",
        "serviceRequestPayload": payload,  # sent as a string
        "timeoutConfig": {"attemptDurationSeconds": longest + _QUEUE_SLACK_S},
        **({"tags": tags} if tags else {}),
    }


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
