"""Jobs on SageMaker, of whichever kind: status, logs, following, stop, download."""

import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any

from botocore import exceptions, xform_name

from entry_point.job.archive import unpack
from entry_point.job.program import UserError
from entry_point.job.run_folder import PER_JOB
from launch.sagemaker.aws import ATTEMPTS, aws_client, open_session
from launch.sagemaker.config import one_name
from launch.sagemaker.s3 import list_objects, split_prefix, split_s3

# Where local runs are, too.
RUNS = Path("runs")
FINAL = ("Completed", "Failed", "Stopped")
TUNING = "HyperParameterTuning"
KINDS = ("Training", "Processing", TUNING)
# How SageMaker reports an unknown job; the second, for tuning jobs.
_UNKNOWN = ("ValidationException", "ResourceNotFound")
# Of each call while a job is followed: outages of some minutes.
_PATIENT_ATTEMPTS = 50
_SHOWN = 10


@dataclass(frozen=True)
class Job:
    """One job; `session` is a boto3 session with a region. AWS errors pass through."""

    session: Any
    name: str
    kind: str = "Training"
    attempts: int = ATTEMPTS
    """Of each call."""

    @cached_property
    def sagemaker(self) -> Any:
        return aws_client(self.session, "sagemaker", attempts=self.attempts)

    def describe(self) -> dict[str, Any]:
        """Returns the service's description of the job."""
        description: dict[str, Any] = self._call("describe")
        return description

    def stop(self) -> None:
        """Ask the job to stop: its container gets SIGTERM, then 120 s."""
        self._call("stop")

    def state(self, description: dict[str, Any]) -> str:
        """InProgress, Stopping, or one of FINAL."""
        return str(description[f"{self.kind}JobStatus"])

    def log(self) -> "JobLog":
        """Returns a reader of the lines that the job's hosts write."""
        logs = aws_client(self.session, "logs", attempts=self.attempts)
        return JobLog(logs, self.name, f"/aws/sagemaker/{self.kind}Jobs")

    def _call(self, verb: str) -> Any:
        operation = getattr(self.sagemaker, xform_name(f"{verb.title()}{self.kind}Job"))
        return operation(**{f"{self.kind}JobName": self.name})


def find_job(session: Any, name: str) -> tuple[Job, dict[str, Any]]:
    """Returns the job of that name and its description; raises UserError if there is none."""
    for kind in KINDS:
        job = Job(session, name, kind)
        try:
            return job, job.describe()
        except exceptions.ClientError as error:
            if error.response["Error"]["Code"] not in _UNKNOWN:
                raise
    raise UserError(
        f"{name}: no such job in {session.region_name}; `make sagemaker ARGS=status` lists the "
        "latest jobs"
    )


def open_job(arguments: Sequence[str]) -> tuple[Job, dict[str, Any]]:
    """Returns the job that the command line names, and its description; raises UserError without
    one."""
    name = one_name(arguments)
    return find_job(open_session(), name)


# Status


def latest(session: Any) -> list[str]:
    """Returns one line for each of the latest jobs, newest first, then one for each endpoint."""
    sagemaker = aws_client(session, "sagemaker")

    def listed(noun: str, member: str, most: int | None) -> list[tuple[Any, str, str, str]]:
        listing = sagemaker.get_paginator(xform_name(f"List{noun}s"))
        pages = listing.paginate(
            SortBy="CreationTime", SortOrder="Descending", PaginationConfig={"MaxItems": most}
        )
        return [
            (each["CreationTime"], noun, each[f"{noun}Status"], each[f"{noun}Name"])
            for each in pages.search(f"{member}[]")
        ]

    jobs = [each for kind in KINDS for each in listed(f"{kind}Job", f"{kind}JobSummaries", _SHOWN)]
    # Endpoints are billed until they are deleted: all of them.
    found = [*sorted(jobs, reverse=True)[:_SHOWN], *listed("Endpoint", "Endpoints", None)]
    return [
        f"{created:%Y-%m-%d %H:%M}  {noun.removesuffix('Job'):<20}  {state:<10}  {name}"
        for created, noun, state, name in found
    ]


def summary(job: Job, description: dict[str, Any]) -> list[str]:
    """Lines for the user: state, machines, results, billed time, failure reason."""
    detail = description.get("SecondaryStatus")
    lines = [f"{job.name}: {job.state(description)}" + (f" ({detail})" if detail else "")]
    processing = description.get("ProcessingResources", {}).get("ClusterConfig", {})
    resources = description.get("ResourceConfig", processing)
    # The second, if the job named several types.
    instance_type = resources.get("InstanceType") or resources.get("SelectedInstanceType")
    if instance_type:
        lines.append(f"machines: {resources['InstanceCount']} x {instance_type}")
    if job.kind == "Training":
        lines += _training_results(description)
    elif job.kind == TUNING:
        lines += _trials(job)
    outputs = description.get("ProcessingOutputConfig", {}).get("Outputs", [])
    lines += [f"output: {each['S3Output']['S3Uri']}" for each in outputs]
    for member in ("FailureReason", "ExitMessage"):
        if description.get(member):
            lines.append(f"reason: {description[member]}")
    return lines


def _training_results(description: dict[str, Any]) -> Iterator[str]:
    for metric in description.get("FinalMetricDataList", []):
        yield f"{metric['MetricName']}: {metric['Value']:.6g}"
    trained = description.get("TrainingTimeInSeconds")
    billed = description.get("BillableTimeInSeconds")
    if trained is not None and billed is not None:
        # The service reports the time of one machine and bills it for each.
        machines = description.get("ResourceConfig", {}).get("InstanceCount", 1)
        line = f"trained {trained} s, billed {billed} s"
        line += f" on each of {machines} machines" if machines > 1 else ""
        if description.get("EnableManagedSpotTraining") and trained:
            line += f": spot saved {100 * (1 - billed / trained):.0f} %"
        yield line
    if pool := description.get("WarmPoolStatus"):
        billed = pool.get("ResourceRetainedBillableTimeInSeconds")
        line = f"warm pool: {pool['Status']}" + (f", billed {billed} s" if billed else "")
        yield f"{line}, by {pool['ReusedByJob']}" if "ReusedByJob" in pool else line
    if checkpoints := checkpoints_uri(description):
        yield f"checkpoints: {checkpoints}"
    if model := description.get("ModelArtifacts", {}).get("S3ModelArtifacts"):
        name = description["TrainingJobName"]
        yield f'model: {model}    make sagemaker ARGS="download {name}"'


def checkpoints_uri(description: dict[str, Any]) -> str | None:
    """Returns the S3 prefix of a training job's checkpoints, None without any.

    Trials of a tuning job, and the jobs of one trainer of `launch.notebook`, write to a folder with
    the job's name below the prefix.
    """
    uri: str | None = description.get("CheckpointConfig", {}).get("S3Uri")
    is_shared = description.get("TuningJobArn") or PER_JOB in description.get("Environment", {})
    if uri and is_shared:
        return f"{uri.rstrip('/')}/{description['TrainingJobName']}"
    return uri


def _trials(job: Job) -> list[str]:
    """Returns one line for each trial of a tuning job, best first: objective, state, name and
    values."""
    listing = "list_training_jobs_for_hyper_parameter_tuning_job"
    pages = job.sagemaker.get_paginator(listing).paginate(HyperParameterTuningJobName=job.name)
    scored, others = [], []
    for trial in pages.search("TrainingJobSummaries[]"):
        values = trial.get("TunedHyperParameters", {})
        text = f"{trial['TrainingJobStatus']:<10}  {trial['TrainingJobName']}  "
        text += " ".join(f"{key}={values[key]}" for key in sorted(values))
        if objective := trial.get("FinalHyperParameterTuningJobObjectiveMetric"):
            sign = 1 if objective.get("Type") == "Minimize" else -1
            scored.append((sign * objective["Value"], f"{objective['Value']:<10.6g}  {text}"))
        else:
            others.append(f"{'-':<10}  {text}")
    return [*(line for _, line in sorted(scored)), *others]


# Logs


class JobLog:
    """Reads each line of a job once, from CloudWatch, which has one stream per host."""

    def __init__(self, logs: Any, job: str, group: str) -> None:
        self._logs, self._job, self._group = logs, job, group
        self._tokens: dict[str, str] = {}

    def new_lines(self) -> list[tuple[str, str]]:
        """(host, line) of all lines since the last call, by time; empty before the first line."""
        found = []
        for stream in self._streams():
            host = stream.removeprefix(f"{self._job}/").split("/")[0].rsplit("-", 1)[0]
            found += [(moment, host, text) for moment, text in self._events(stream)]
        return [(host, text) for _, host, text in sorted(found, key=itemgetter(0))]

    def _streams(self) -> Iterator[str]:
        paginator = self._logs.get_paginator("describe_log_streams")
        pages = paginator.paginate(
            logGroupName=self._group, logStreamNamePrefix=f"{self._job}/", PaginationConfig={}
        )
        try:
            yield from pages.search("logStreams[].logStreamName")
        except exceptions.ClientError as error:
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


def follow(job: Job, *, interval_s: float = 5.0) -> str | None:
    """Print the job's lines and states until it ends; returns its final state.

    Throttling and lost connections are retried for some minutes. Ctrl-C leaves the job running, and
    returns None.
    """
    job = replace(job, attempts=_PATIENT_ATTEMPTS)
    log, shown = job.log(), ""
    try:
        while True:
            description = job.describe()
            _show(f"{host} {text}" for host, text in log.new_lines())
            detail = description.get("SecondaryStatus")
            state = job.state(description) + (f" ({detail})" if detail else "")
            if state != shown:
                _show([state])
            shown = state
            time.sleep(interval_s)
            if job.state(description) in FINAL:
                # The last lines may reach CloudWatch after the job has ended.
                _show(f"{host} {text}" for host, text in log.new_lines())
                break
    except KeyboardInterrupt:
        _show([f'{job.name} keeps running; make sagemaker ARGS="stop {job.name}" stops it'])
        return None
    _show(summary(job, description))
    return job.state(description)


def _show(lines: Iterable[str]) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


# Stop and download


def stop(job: Job, description: dict[str, Any]) -> str:
    """Ask the job to stop, unless it has ended."""
    if job.state(description) in FINAL:
        return f"{job.name} has already ended: {job.state(description)}"
    job.stop()
    return f"{job.name} is stopping: it has 120 s to shut down"


def download(job: Job, description: dict[str, Any], *, checkpoints: bool) -> list[str]:
    """Download model, output and, if asked, checkpoints into `runs/<name>`; returns the paths.

    Each part is complete or absent; existing parts are not downloaded again. Raises UserError if
    the job has produced nothing yet.
    """
    name, folder, fetched = job.name, RUNS / job.name, list[Path]()
    if job.kind != "Training":
        raise UserError(
            f'{name}: not a training job; `make sagemaker ARGS="status {name}"` shows its output'
        )
    s3 = aws_client(job.session, "s3")
    if model := description.get("ModelArtifacts", {}).get("S3ModelArtifacts"):
        require_archive(description)
        output = model.removesuffix("model.tar.gz") + "output.tar.gz"
        fetched += _fetch_archive(s3, model, folder / "model")
        fetched += _fetch_archive(s3, output, folder / "output" / "data")
    kept = checkpoints_uri(description)
    if checkpoints and kept:
        fetched += _fetch_prefix(s3, kept, folder / "checkpoints")
    if not fetched:
        raise UserError(
            f"{name}: nothing to download yet, the job is {job.state(description)}"
            + ("" if checkpoints else "; --checkpoints downloads its checkpoints")
        )
    return [str(path) for path in fetched]


def require_archive(description: dict[str, Any]) -> None:
    """Raise UserError for a training job whose model is not in a model.tar.gz."""
    model, name = description["ModelArtifacts"]["S3ModelArtifacts"], description["TrainingJobName"]
    kind = description.get("OutputDataConfig", {}).get("CompressionType", "GZIP")
    if kind == "NONE" or not model.endswith(".tar.gz"):
        raise UserError(
            f"{name}: its output is not compressed (CompressionType={kind}), and this reads "
            f"model.tar.gz: aws s3 sync {model} runs/{name}/model copies the model here"
        )


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
        except exceptions.ClientError as error:
            if error.response["Error"]["Code"] == "404":
                return []
            raise
        try:
            with tarfile.open(archive) as tar:
                unpack(tar, unpacked)
        except tarfile.TarError as error:
            raise UserError(f"{uri}: cannot be unpacked safely: {error}") from error
        # POSIX renames onto an empty folder.
        unpacked.rename(target)
    return [target]


def _fetch_prefix(s3: Any, uri: str, target: Path) -> list[Path]:
    """Download every object below the prefix that lies inside `target`."""
    bucket, prefix = split_prefix(uri, "CheckpointConfig")
    for name in list_objects(s3, bucket, prefix):
        path = target / name
        if not name or name.endswith("/") or not path.resolve().is_relative_to(target.resolve()):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        # boto3 downloads to a temporary name, then renames.
        s3.download_file(bucket, prefix + name, str(path))
    return [target] if target.is_dir() else []
