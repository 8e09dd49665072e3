"""Sending images to an endpoint and printing its answers."""

import mimetypes
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from launch.aws.hosting.endpoint import find_endpoint
from launch.aws.s3.s3_bucket import split_s3
from launch.command_line import LaunchError
from launch.sagemaker.aws import aws_client

_ACCEPT = "application/json"
_PATIENCE_S = 900.0


def answers(session: Any, endpoint: str, files: Sequence[Path]) -> Iterator[str]:
    """The endpoint's answer to each file; raises LaunchError for what it refuses."""
    description = find_endpoint(session, endpoint)
    queue = description.get("AsyncInferenceConfig", {}).get("OutputConfig", {}).get("S3OutputPath")
    runtime = aws_client(session, "sagemaker-runtime")
    for path in files:
        image = _read(path)
        content = mimetypes.guess_type(path)[0] or "application/x-image"
        if queue:
            s3 = aws_client(session, "s3")
            yield _queued(runtime, s3, endpoint, path, image, content, queue)
        else:
            yield _direct(runtime, endpoint, path, image, content)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise LaunchError(f"{path}: {error.strerror}") from error


def _direct(runtime: Any, endpoint: str, path: Path, image: bytes, content: str) -> str:
    try:
        answer = runtime.invoke_endpoint(
            EndpointName=endpoint, ContentType=content, Accept=_ACCEPT, Body=image
        )
    except ClientError as error:
        if error.response["Error"]["Code"] != "ModelError":
            raise
        raise LaunchError(f"{path}: {error.response['OriginalMessage']}") from error
    return _text(answer["Body"])


def _queued(
    runtime: Any, s3: Any, endpoint: str, path: Path, image: bytes, content: str, output: str
) -> str:
    """Upload the file below the endpoint's output, queue it and wait for the answer."""
    bucket, prefix = split_s3(output, "S3OutputPath")
    key = f"{prefix}/input/{uuid.uuid4()}-{path.name}".lstrip("/")
    s3.put_object(Bucket=bucket, Key=key, Body=image, ContentType=content)
    queued = runtime.invoke_endpoint_async(
        EndpointName=endpoint,
        ContentType=content,
        Accept=_ACCEPT,
        InputLocation=f"s3://{bucket}/{key}",
    )
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        if (answer := _object(s3, queued["OutputLocation"])) is not None:
            return answer
        failure = queued.get("FailureLocation")
        if failure and (reason := _object(s3, failure)) is not None:
            raise LaunchError(f"{path}: {reason}")
        time.sleep(1)
    raise LaunchError(
        f"{path}: no answer in {_PATIENCE_S:.0f} s; it will be at {queued['OutputLocation']}"
    )


def _object(s3: Any, uri: str) -> str | None:
    bucket, key = split_s3(uri, "OutputLocation")
    try:
        return _text(s3.get_object(Bucket=bucket, Key=key)["Body"])
    except s3.exceptions.NoSuchKey:
        return None


def _text(body: Any) -> str:
    text: str = body.read().decode("utf-8", "backslashreplace").strip()
    return text
