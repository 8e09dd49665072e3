"""Launching one training job: composed, checked, shown or sent."""

import json
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from launch.request import checks, job_config
from launch.request import training_request as request
from launch.request.image_rules import ECR_IMAGE
from launch.request.launch_config import LaunchConfig
from launch.request.launch_errors import LaunchError
from launch.request.launch_overrides import load_launch_config


def dry_run(arguments: Sequence[str]) -> None:
    """Print the request as JSON, checked, without credentials and without a network."""
    config, overrides = load_launch_config(arguments)
    built = _checked_request(config, overrides, config.job.region)
    sys.stdout.write(json.dumps(built, indent=2, ensure_ascii=False) + "\n")


def launch(arguments: Sequence[str]) -> tuple[Any, str]:
    """Send the request by the installed SDK; returns the boto3 session and the job's name."""
    from launch.aws import cost
    from launch.aws import session as aws
    from launch.aws.sdk import send as sdk

    config, overrides = load_launch_config(arguments)
    sdk.installed_version()
    session = aws.open_session(config.job.region)
    if config.resume_from:
        config.job.checkpoints = _checkpoints_of(config.resume_from, session)
    built = _checked_request(config, overrides, session.region_name)
    require_image(built["AlgorithmSpecification"]["TrainingImage"], session)
    sys.stdout.write(cost.estimate(config.target, session) + "\n")
    sdk.send(built, session)
    name: str = built["TrainingJobName"]
    sys.stdout.write(f"job {name} created\n")
    for line in where_to_look(name, session.region_name):
        sys.stdout.write(f"  {line}\n")
    return session, name


def where_to_look(name: str, region: str) -> list[str]:
    """Commands and the page that show a job."""
    domain = "amazonaws.cn" if region.startswith("cn-") else "aws.amazon.com"
    return [
        f"make sagemaker-status ARGS={name}     make sagemaker-logs ARGS='{name} --follow'",
        f"make sagemaker-download ARGS={name}   make sagemaker-stop ARGS={name}",
        f"https://{region}.console.{domain}/sagemaker/home?region={region}#/jobs/{name}",
    ]


def require_image(image: str, session: Any) -> None:
    """Raise LaunchError if the registry says that it has no such image.

    A caller who may not ask the registry is not stopped: the job's role may still read it.
    """
    from botocore.exceptions import ClientError

    from launch.aws import session as aws

    match = ECR_IMAGE.fullmatch(image)
    assert match, "checked before"
    wanted = {"imageDigest": match["digest"]} if match["digest"] else {"imageTag": match["tag"]}
    if not match["digest"] and not match["tag"]:
        wanted = {"imageTag": "latest"}
    ecr = aws.client(session, "ecr", region_name=match["region"])
    try:
        ecr.describe_images(
            registryId=match["account"], repositoryName=match["repository"], imageIds=[wanted]
        )
    except ClientError as error:
        if error.response["Error"]["Code"] in (
            "RepositoryNotFoundException",
            "ImageNotFoundException",
        ):
            raise LaunchError(
                f"target.image={image}: the registry has no such image; `make push` puts it there "
                "and prints its URI"
            ) from error
        if not error.response["Error"]["Code"].startswith("AccessDenied"):
            raise


def _checked_request(
    config: LaunchConfig, overrides: Sequence[str], region: str | None
) -> dict[str, Any]:
    built = request.build(
        config, overrides, request.job_name(config.job, datetime.now(timezone.utc))
    )
    checks.check(
        built, config, region, job_config.training_problems(overrides, config.job.channels)
    )
    return built


def _checkpoints_of(name: str, session: Any) -> str:
    """Where an earlier job kept its checkpoints; LaunchError if it has none or still runs."""
    from launch.aws import session as aws

    found = aws.client(session, "sagemaker").describe_training_job(TrainingJobName=name)
    if found["TrainingJobStatus"] in ("InProgress", "Stopping"):
        raise LaunchError(
            f"resume_from={name}: that job is {found['TrainingJobStatus']}, and two jobs must "
            f"not write the same checkpoints: make sagemaker-stop ARGS={name}, or wait for its end"
        )
    uri: str | None = found.get("CheckpointConfig", {}).get("S3Uri")
    if not uri:
        raise LaunchError(f"resume_from={name}: that job kept no checkpoints")
    return uri
