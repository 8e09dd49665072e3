"""Training jobs that wait in an AWS Batch queue until there is capacity."""

import json

from launch.aws.session import aws_client
from launch.aws.training_spec import TrainingJobs

# Batch stops a service job this long after SageMaker would have stopped it.
_SLACK_S = 3600


def submit(jobs: TrainingJobs) -> str:
    """Hand the request of a new job to `job.queue`; returns the id of the Batch job.

    AWS errors pass through.
    """
    request = jobs.renew()
    tags = {tag["Key"]: tag["Value"] for tag in request.get("Tags", [])}
    payload = {key: value for key, value in request.items() if key != "Tags"}
    stopping = request["StoppingCondition"]
    longest = stopping.get("MaxWaitTimeInSeconds", stopping["MaxRuntimeInSeconds"])
    answer = aws_client(jobs.session, "batch").submit_service_job(
        jobName=request["TrainingJobName"],
        jobQueue=jobs.spec.config.job.queue,
        serviceJobType="SAGEMAKER_TRAINING",
        serviceRequestPayload=json.dumps(payload),
        timeoutConfig={"attemptDurationSeconds": longest + _SLACK_S},
        **({"tags": tags} if tags else {}),
    )
    return str(answer["jobId"])
