"""Jobs by name: their state, their end, their lines, their results."""

import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from launch.aws import session as aws
from launch.aws.job_summary import summary
from launch.aws.sagemaker_job import FINAL, KINDS, find
from launch.local import RUNS
from launch.request.launch_errors import LaunchError


def latest(session: Any, count: int = 10) -> list[str]:
    """One line for each of the latest jobs, newest first."""
    sagemaker = aws.client(session, "sagemaker")
    found = []
    for kind in KINDS:
        answer = getattr(sagemaker, f"list_{kind.lower()}_jobs")(
            SortBy="CreationTime", SortOrder="Descending", MaxResults=count
        )
        found += [
            (job["CreationTime"], kind, job[f"{kind}JobStatus"], job[f"{kind}JobName"])
            for job in answer[f"{kind}JobSummaries"]
        ]
    found.sort(reverse=True)
    if not found:
        return [f"no jobs in {session.region_name}"]
    return [
        f"{created:%Y-%m-%d %H:%M}  {kind:<10}  {state:<10}  {name}"
        for created, kind, state, name in found[:count]
    ]


def status(session: Any, name: str) -> list[str]:
    """What there is to say about the job."""
    return summary(*find(session, name))


def stop(session: Any, name: str) -> str:
    """Ask the job to stop: SIGTERM, and 120 s for its checkpoint."""
    job, description = find(session, name)
    if job.state(description) in FINAL:
        return f"{name} has ended already: {job.state(description)}"
    job.stop()
    return f"{name} is stopping: it has 120 s to end in order"


def logs(session: Any, name: str) -> None:
    """Print the lines of all hosts so far."""
    job, _ = find(session, name)
    for host, text in job.lines().new():
        sys.stdout.write(f"{host} {text}\n")


def download(session: Any, name: str, *, checkpoints: bool = False) -> Path:
    """Fetch a job's model, output and, if asked, checkpoints into `runs/<name>`; returns that.

    Each part is complete or absent; parts that are there already are left alone. Raises LaunchError
    if the job has produced nothing yet.
    """
    job, description = find(session, name)
    if job.kind != "Training":
        raise LaunchError(f"{name}: a {job.kind} job leaves its output in S3; see sagemaker-status")
    s3 = aws.client(session, "s3")
    folder = RUNS / name
    model = description.get("ModelArtifacts", {}).get("S3ModelArtifacts")
    fetched = []
    if model:
        output = model.removesuffix("model.tar.gz") + "output.tar.gz"
        fetched += _fetch_archive(s3, model, folder / "model")
        fetched += _fetch_archive(s3, output, folder / "output" / "data")
    kept = description.get("CheckpointConfig", {}).get("S3Uri")
    if checkpoints and kept:
        fetched += _fetch_prefix(s3, kept, folder / "checkpoints")
    if not fetched:
        raise LaunchError(
            f"{name}: nothing to download yet, the job is {description['TrainingJobStatus']}"
            + ("" if checkpoints else "; --checkpoints fetches those there are")
        )
    for path in fetched:
        sys.stdout.write(f"{path}\n")
    return folder


def _fetch_archive(s3: Any, uri: str, target: Path) -> list[Path]:
    """Download and unpack a tar.gz in place; nothing if S3 has none."""
    if target.is_dir() and any(target.iterdir()):
        return [target]
    target.parent.mkdir(parents=True, exist_ok=True)
    bucket, key = aws.split_s3(uri, "ModelArtifacts")
    with tempfile.TemporaryDirectory(prefix=".download-", dir=target.parent) as temporary:
        archive, unpacked = Path(temporary) / "archive", Path(temporary) / "unpacked"
        unpacked.mkdir()
        try:
            s3.download_file(bucket, key, str(archive))
        except ClientError as error:
            if error.response["Error"]["Code"] == "404":
                return []
            raise
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(unpacked, filter="data")
        except tarfile.TarError as error:
            raise LaunchError(f"{uri}: cannot be unpacked safely: {error}") from error
        if target.is_dir():
            target.rmdir()
        unpacked.rename(target)
    return [target]


def _fetch_prefix(s3: Any, uri: str, target: Path) -> list[Path]:
    """Download every object below the prefix, each under its final name only when complete."""
    bucket, prefix = aws.split_s3(uri, "CheckpointConfig")
    prefix = prefix.rstrip("/") + "/"
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for item in page.get("Contents", []):
            path = target / item["Key"].removeprefix(prefix)
            if item["Key"].endswith("/") or not path.resolve().is_relative_to(target.resolve()):
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            # boto3 writes to a temporary name and renames.
            s3.download_file(bucket, item["Key"], str(path))
    return [target] if target.is_dir() else []
