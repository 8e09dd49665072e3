"""A job on SageMaker, of whichever kind: its state, its summary, its log lines."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from botocore import xform_name
from botocore.exceptions import ClientError

from launch.aws.aws_errors import is_denied
from launch.aws.session import aws_client
from launch.aws.tuning.trials import trial_table
from launch.request.launch_errors import LaunchError

FINAL = ("Completed", "Failed", "Stopped")
TUNING = "HyperParameterTuning"
KINDS = ("Training", "Processing", "Transform", TUNING)
OPTIONAL_KINDS = ("Transform", TUNING)
"""The kinds that a user who only trains may not be allowed to see."""


# How SageMaker reports an unknown job; the second, for tuning jobs.
_UNKNOWN = ("ValidationException", "ResourceNotFound")


@dataclass(frozen=True)
class Job:
    """One job; `session` is a boto3 session with a region. AWS errors pass through."""

    session: Any
    name: str
    kind: str = "Training"

    @cached_property
    def _sagemaker(self) -> Any:
        return aws_client(self.session, "sagemaker")

    def describe(self) -> dict[str, Any]:
        """The service's description of the job."""
        description: dict[str, Any] = self._call("describe")
        return description

    def stop(self) -> None:
        """Ask the job to stop: its container gets SIGTERM, then 120 s."""
        self._call("stop")

    def state(self, description: dict[str, Any]) -> str:
        """InProgress, Stopping, or one of FINAL."""
        return str(description[f"{self.kind}JobStatus"])

    def log(self) -> "JobLog":
        """A reader of the lines that the job's hosts write."""
        logs = aws_client(self.session, "logs")
        return JobLog(logs, self.name, f"/aws/sagemaker/{self.kind}Jobs")

    def summary(self, description: dict[str, Any]) -> list[str]:
        """Lines for the user: state, results, billed seconds, failure reason."""
        state, detail = self.state(description), description.get("SecondaryStatus")
        lines = [f"{self.name}: {state}" + (f" ({detail})" if detail else "")]
        lines += _DETAILS[self.kind](description)
        if self.kind == TUNING:
            lines += trial_table(self._sagemaker, self.name)
        for member in ("FailureReason", "ExitMessage"):
            if description.get(member):
                lines.append(f"reason: {description[member]}")
        return lines

    def _call(self, verb: str) -> Any:
        operation = getattr(self._sagemaker, xform_name(f"{verb.title()}{self.kind}Job"))
        return operation(**{f"{self.kind}JobName": self.name})


def find_job(session: Any, name: str) -> tuple[Job, dict[str, Any]]:
    """The job of that name and its description; raises LaunchError if there is none."""
    for kind in KINDS:
        job = Job(session, name, kind)
        try:
            return job, job.describe()
        except ClientError as error:
            unknown = error.response["Error"]["Code"] in _UNKNOWN
            if not unknown and not (kind in OPTIONAL_KINDS and is_denied(error)):
                raise
    raise LaunchError(
        f"{name}: no such job in {session.region_name}; `make sagemaker ARGS=status` lists the "
        "latest jobs"
    )


def _training_details(description: dict[str, Any]) -> list[str]:
    lines = _machines(description.get("ResourceConfig", {}))
    for metric in description.get("FinalMetricDataList", []):
        lines.append(f"{metric['MetricName']}: {metric['Value']:.6g}")
    lines += _training_time(description)
    lines += _warm_pool(description.get("WarmPoolStatus", {}))
    if checkpoints := checkpoints_uri(description):
        lines.append(f"checkpoints: {checkpoints}")
    if model := description.get("ModelArtifacts", {}).get("S3ModelArtifacts"):
        name = description["TrainingJobName"]
        lines.append(f'model: {model}    make sagemaker ARGS="download {name}"')
    return lines


def _warm_pool(status: dict[str, Any]) -> list[str]:
    """One line about the instances that the job left running, if it did."""
    if not status:
        return []
    billed = status.get("ResourceRetainedBillableTimeInSeconds")
    line = f"warm pool: {status['Status']}" + (f", billed {billed} s" if billed else "")
    return [f"{line}, by {status['ReusedByJob']}" if "ReusedByJob" in status else line]


def checkpoints_uri(description: dict[str, Any]) -> str | None:
    """The S3 prefix of a training job's checkpoints, None without any.

    A trial of a tuning job writes to a folder with its own name, below the prefix of all trials.
    """
    uri: str | None = description.get("CheckpointConfig", {}).get("S3Uri")
    if uri and description.get("TuningJobArn"):
        return f"{uri.rstrip('/')}/{description['TrainingJobName']}"
    return uri


def _processing_details(description: dict[str, Any]) -> list[str]:
    machines = description.get("ProcessingResources", {}).get("ClusterConfig", {})
    lines = _machines(machines)
    lines += _run_time(description, "Processing")
    for output in description.get("ProcessingOutputConfig", {}).get("Outputs", []):
        lines.append(f"output: {output['S3Output']['S3Uri']}")
    return lines


def _run_time(description: dict[str, Any], kind: str) -> list[str]:
    began, ended = (description.get(f"{kind}{moment}Time") for moment in ("Start", "End"))
    if began is None or ended is None:
        return []
    return [f"ran {(ended - began).total_seconds():.0f} s, billed per machine"]


def _transform_details(description: dict[str, Any]) -> list[str]:
    lines = _machines(description.get("TransformResources", {}))
    lines += _run_time(description, "Transform")
    lines.append(f"output: {description['TransformOutput']['S3OutputPath']}")
    return lines


def _tuning_details(description: dict[str, Any]) -> list[str]:
    counts = description.get("TrainingJobStatusCounters", {})
    return [", ".join(f"{count} {state}" for state, count in counts.items() if count)]


_DETAILS = {
    TUNING: _tuning_details,
    "Training": _training_details,
    "Processing": _processing_details,
    "Transform": _transform_details,
}


def _machines(resources: dict[str, Any]) -> list[str]:
    # The second, if the job named several types.
    instance_type = resources.get("InstanceType") or resources.get("SelectedInstanceType")
    return [f"machines: {resources['InstanceCount']} x {instance_type}"] if instance_type else []


def _training_time(description: dict[str, Any]) -> list[str]:
    trained = description.get("TrainingTimeInSeconds")
    billed = description.get("BillableTimeInSeconds")
    if trained is None or billed is None:
        return []
    # The service reports the time of one machine and bills it for each.
    machines = description.get("ResourceConfig", {}).get("InstanceCount", 1)
    each = f" on each of {machines} machines" if machines > 1 else ""
    line = f"trained {trained} s, billed {billed} s{each}"
    if description.get("EnableManagedSpotTraining") and trained:
        line += f": spot saved {100 * (1 - billed / trained):.0f} %"
    return [line]


class JobLog:
    """Reads each line of a job once, from CloudWatch, which has one stream per host."""

    def __init__(self, logs: Any, job: str, group: str) -> None:
        self._logs, self._job, self._group = logs, job, group
        self._tokens: dict[str, str] = {}
        # (time, host, line); keeps lines read before a failed call, as they are not read again.
        self._read: list[tuple[int, str, str]] = []

    def new_lines(self) -> list[tuple[str, str]]:
        """(host, line) of all lines since the last call, by time; empty before the first line.

        CloudWatch errors pass through; the next call continues where this one failed.
        """
        for stream in self._streams():
            host = stream.removeprefix(f"{self._job}/").split("/")[0].rsplit("-", 1)[0]
            for time, text in self._events(stream):
                self._read.append((time, host, text))
        found = sorted(self._read, key=lambda event: event[0])
        self._read.clear()
        return [(host, text) for _, host, text in found]

    def _streams(self) -> Iterator[str]:
        paginator = self._logs.get_paginator("describe_log_streams")
        pages = paginator.paginate(
            logGroupName=self._group, logStreamNamePrefix=f"{self._job}/", PaginationConfig={}
        )
        try:
            yield from pages.search("logStreams[].logStreamName")
        except ClientError as error:
            # Group and streams do not exist before the first line.
            if error.response["Error"]["Code"] != "ResourceNotFoundException":
                raise

    def _events(self, stream: str) -> Iterator[tuple[int, str]]:
        while True:
            token = self._tokens.get(stream)
            page = self._logs.get_log_events(
                logGroupName=self._group,
                logStreamName=stream,
                startFromHead=True,
                **({"nextToken": token} if token else {}),
            )
            for event in page["events"]:
                yield event["timestamp"], event["message"].rstrip("\n")
            self._tokens[stream] = page["nextForwardToken"]
            # At the end of the stream, CloudWatch returns the same token again.
            if page["nextForwardToken"] == token:
                return
