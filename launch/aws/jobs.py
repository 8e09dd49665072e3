"""The commands for existing jobs: status, stop, download."""

import tarfile
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from botocore import xform_name
from botocore.exceptions import ClientError

from launch.aws import hosting
from launch.aws.aws_errors import is_denied
from launch.aws.s3 import object_sizes, split_prefix, split_s3
from launch.aws.sagemaker_job import FINAL, KINDS, OPTIONAL_KINDS, TUNING, checkpoints_uri, find_job
from launch.aws.session import aws_client, open_session
from launch.request.launch_errors import LaunchError
from launch.request.launch_overrides import load_names

# Where local runs are, too.
RUNS = Path("runs")


def open_job(arguments: Sequence[str]) -> tuple[Any, str]:
    """A boto3 session and the job's name from the command line; raises LaunchError without one."""
    region, name = _parse(arguments)
    if name is None:
        raise LaunchError(
            "no job given: add its name; `make sagemaker ARGS=status` lists the latest"
        )
    return open_session(region), name


def _parse(arguments: Sequence[str]) -> tuple[str | None, str | None]:
    """`job.region` and the job's name from the command line."""
    names, config = load_names(arguments)
    if len(names) > 1:
        raise LaunchError(f"{' '.join(names)}: only one job per command")
    return config.job.region, names[0] if names else None


def status(arguments: Sequence[str]) -> list[str]:
    """The summary of a job or endpoint; without a name, the latest of both."""
    region, name = _parse(arguments)
    session = open_session(region)
    if name is None:
        return _latest(session)
    served = _unless_denied(lambda: hosting.summary(session, name))
    try:
        job, description = find_job(session, name)
    except LaunchError:
        if not served:
            raise
        return served
    return [*job.summary(description), *served]


def _latest(session: Any, count: int = 10) -> list[str]:
    """One line for each of the latest jobs, newest first, and for each endpoint."""
    sagemaker = aws_client(session, "sagemaker")
    found = []
    for kind in KINDS:
        ask = partial(_newest, sagemaker, kind, count)
        found += [
            (job["CreationTime"], kind, job[f"{kind}JobStatus"], job[f"{kind}JobName"])
            for job in (_unless_denied(ask) if kind in OPTIONAL_KINDS else ask())
        ]
    found.sort(reverse=True)
    lines = [
        f"{created:%Y-%m-%d %H:%M}  {kind:<10}  {state:<10}  {name}"
        for created, kind, state, name in found[:count]
    ]
    lines += _unless_denied(lambda: hosting.latest(session))
    return lines or [f"no jobs in {session.region_name}"]


def _newest(sagemaker: Any, kind: str, count: int) -> list[Any]:
    listing = getattr(sagemaker, xform_name(f"List{kind}Jobs"))
    answer = listing(SortBy="CreationTime", SortOrder="Descending", MaxResults=count)
    found: list[Any] = answer[f"{kind}JobSummaries"]
    return found


def _unless_denied(ask: Callable[[], list[Any]]) -> list[Any]:
    """The answer; nothing if the user may not ask: training needs no permission to deploy."""
    try:
        return ask()
    except ClientError as error:
        if not is_denied(error):
            raise
        return []


def stop(session: Any, name: str) -> str:
    """Ask the job to stop: SIGTERM, then 120 s."""
    job, description = find_job(session, name)
    if job.state(description) in FINAL:
        return f"{name} has already ended: {job.state(description)}"
    job.stop()
    return f"{name} is stopping: it has 120 s to shut down"


def download(session: Any, name: str, *, checkpoints: bool) -> list[str]:
    """Download model, output and, if asked, checkpoints into `runs/<name>`; returns the paths.

    Each part is complete or absent; existing parts are not downloaded again. Raises LaunchError if
    the job has produced nothing yet.
    """
    job, description = find_job(session, name)
    if job.kind == TUNING:
        raise LaunchError(
            f"{name}: a tuning job; download one of its trials, which "
            f'`make sagemaker ARGS="status {name}"` lists'
        )
    if job.kind != "Training":
        raise LaunchError(
            f"{name}: the output of a {job.kind} job stays in S3; "
            f'`make sagemaker ARGS="status {name}"` prints where'
        )
    s3 = aws_client(session, "s3")
    folder = RUNS / name
    model = description.get("ModelArtifacts", {}).get("S3ModelArtifacts")
    fetched = []
    if model:
        output = model.removesuffix("model.tar.gz") + "output.tar.gz"
        fetched += _fetch_archive(s3, model, folder / "model")
        fetched += _fetch_archive(s3, output, folder / "output" / "data")
    kept = checkpoints_uri(description)
    if checkpoints and kept:
        fetched += _fetch_prefix(s3, kept, folder / "checkpoints")
    if not fetched:
        raise LaunchError(
            f"{name}: nothing to download yet, the job is {description['TrainingJobStatus']}"
            + ("" if checkpoints else "; --checkpoints downloads its checkpoints")
        )
    return [str(path) for path in fetched]


def _fetch_archive(s3: Any, uri: str, target: Path) -> list[Path]:
    """Download and unpack a tar.gz; returns an empty list if S3 does not have it."""
    if target.is_dir() and any(target.iterdir()):
        return [target]
    target.parent.mkdir(parents=True, exist_ok=True)
    bucket, key = split_s3(uri, "ModelArtifacts")
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
    """Download every object below the prefix that lies inside `target`."""
    bucket, prefix = split_prefix(uri, "CheckpointConfig")
    for name in object_sizes(s3, bucket, prefix):
        path = target / name
        if not name or name.endswith("/") or not path.resolve().is_relative_to(target.resolve()):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        # boto3 downloads to a temporary name, then renames.
        s3.download_file(bucket, prefix + name, str(path))
    return [target] if target.is_dir() else []
