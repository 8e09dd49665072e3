"""Starting a batch transform: the model of a training job over an S3 prefix."""

import sys
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError

from launch.aws.cost import PriceUnknownError, hourly_cost
from launch.aws.hosting.deployment import Deployment
from launch.request.hosting import transform_request
from launch.request.hosting.hosting_config import TransformConfig
from launch.sagemaker.aws import aws_client
from launch.sagemaker.jobs import Job


def checked_requests(deployment: Deployment[TransformConfig]) -> dict[str, dict[str, Any]]:
    """Operation -> request; raises LaunchError with one line for each problem."""
    model, config, launch = deployment.model, deployment.config, deployment.launch
    requests = transform_request.build(model, config, launch.job.tags, datetime.now(UTC))
    transform_request.check(requests, model, config, deployment.region)
    return requests


def transform(deployment: Deployment[TransformConfig]) -> Job:
    """Start the transform job; if it is refused, its model does not remain. Raises LaunchError."""
    # Imported here because a dry run does not need boto3, and that takes long to load.
    from launch.aws.ecr import require_image

    requests, session = checked_requests(deployment), deployment.session
    require_image(deployment.model.target, session)
    request = requests["CreateTransformJob"]
    machines = request["TransformResources"]
    kind, count = machines["InstanceType"], machines["InstanceCount"]
    try:
        cost = f"${hourly_cost([(kind, count)], session, 'Batch Transform'):,.2f} per hour"
    except PriceUnknownError as error:
        cost = str(error)
    sys.stdout.write(f"cost: {cost} for {count} x {kind}, while the job runs\n")
    sagemaker = aws_client(session, "sagemaker")
    sagemaker.create_model(**requests["CreateModel"])
    try:
        sagemaker.create_transform_job(**request)
    except ClientError:
        sagemaker.delete_model(ModelName=request["ModelName"])
        raise
    name = request["TransformJobName"]
    sys.stdout.write(f"job {name} created\n")
    return Job(session, name, "Transform")
