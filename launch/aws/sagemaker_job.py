"""A job on SageMaker by its name, whether it trains or processes."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from botocore.exceptions import ClientError

from launch.aws import session as aws
from launch.aws.job_logs import JobLogs
from launch.request.launch_errors import LaunchError

FINAL = ("Completed", "Failed", "Stopped")
KINDS = ("Training", "Processing")


@dataclass(frozen=True)
class Job:
    """One job; `session` is a boto3 session with a region. Errors of AWS pass through."""

    session: Any
    name: str
    kind: str = "Training"

    @cached_property
    def sagemaker(self) -> Any:
        return aws.client(self.session, "sagemaker")

    def describe(self) -> dict[str, Any]:
        """What the service says of it."""
        operation = getattr(self.sagemaker, f"describe_{self.kind.lower()}_job")
        description: dict[str, Any] = operation(**self._named)
        return description

    def stop(self) -> None:
        """Ask it to stop: its container gets SIGTERM, and 120 s."""
        getattr(self.sagemaker, f"stop_{self.kind.lower()}_job")(**self._named)

    def state(self, description: dict[str, Any]) -> str:
        """InProgress, Stopping, or one of FINAL."""
        return str(description[f"{self.kind}JobStatus"])

    def lines(self) -> JobLogs:
        """A reader of what its hosts write."""
        logs = aws.client(self.session, "logs")
        return JobLogs(logs, self.name, f"/aws/sagemaker/{self.kind}Jobs")

    @property
    def _named(self) -> dict[str, str]:
        return {f"{self.kind}JobName": self.name}


def find(session: Any, name: str) -> tuple[Job, dict[str, Any]]:
    """The job of that name and its description; LaunchError where there is none."""
    for kind in KINDS:
        job = Job(session, name, kind)
        try:
            return job, job.describe()
        except ClientError as error:
            # The service's way of saying that it has no such job.
            if error.response["Error"]["Code"] != "ValidationException":
                raise
    raise LaunchError(
        f"{name}: no such job in {session.region_name}; `make sagemaker-status` lists the latest"
    )
