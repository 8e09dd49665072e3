"""A job's lines in CloudWatch, one stream for each host."""

from collections.abc import Iterator
from typing import Any

from botocore.exceptions import ClientError


class JobLogs:
    """Reads each line of a job once, in the order of time on each host."""

    def __init__(self, logs: Any, job: str, group: str) -> None:
        self._logs, self._job, self._group = logs, job, group
        self._tokens: dict[str, str] = {}
        # (time, host, line): what was read before a call failed is not read again.
        self._read: list[tuple[int, str, str]] = []

    def new(self) -> list[tuple[str, str]]:
        """(host, line) of all lines since the last call; empty before the first host speaks.

        Errors of CloudWatch pass through; the next call goes on where this one failed.
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
            for page in pages:
                for stream in page["logStreams"]:
                    yield stream["logStreamName"]
        except ClientError as error:
            # Neither group nor streams exist before the first line is written.
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
            # CloudWatch repeats the token at the end of what there is.
            if page["nextForwardToken"] == token:
                return
