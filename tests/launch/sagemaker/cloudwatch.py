"""Writes a job's lines to CloudWatch, as its hosts do."""

import time

from tests.launch.conftest import Aws

_START = int(time.time() - 3600) * 1000


def write_lines(
    aws: Aws,
    lines: dict[str, list[tuple[int, str]]],
    *,
    job: str = "the-job",
    group: str = "/aws/sagemaker/TrainingJobs",
) -> None:
    """Write lines of each host; times are in milliseconds after a moment one hour ago."""
    logs = aws.client("logs")
    if not logs.describe_log_groups(logGroupNamePrefix=group)["logGroups"]:
        logs.create_log_group(logGroupName=group)
    for host, events in lines.items():
        stream = {"logGroupName": group, "logStreamName": f"{job}/{host}-1700000000"}
        if not logs.describe_log_streams(
            logGroupName=group, logStreamNamePrefix=stream["logStreamName"]
        )["logStreams"]:
            logs.create_log_stream(**stream)
        logs.put_log_events(
            **stream,
            logEvents=[{"timestamp": _START + after, "message": text} for after, text in events],
        )
