"""Jobs on SageMaker, of whichever kind: status, logs, following, stop, download."""

import re
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from botocore import exceptions, xform_name
from rich.console import Console

from entry_point.contract.metrics_line import METRIC_REGEXES
from launch.command_line import LaunchError
from launch.sagemaker.aws import aws_client, is_denied, open_session
from launch.sagemaker.config import load_names
from launch.sagemaker.s3 import object_sizes, split_prefix, split_s3

T = TypeVar("T")
# Where local runs are, too.
RUNS = Path("runs")
FINAL = ("Completed", "Failed", "Stopped")
TUNING = "HyperParameterTuning"
KINDS = ("Training", "Processing", "Transform", TUNING)
OPTIONAL_KINDS = ("Transform", TUNING)
"""The kinds that a user who only trains may not be allowed to see."""
# How SageMaker reports an unknown job; the second, for tuning jobs.
_UNKNOWN = ("ValidationException", "ResourceNotFound")
_TRANSIENT = ("Throttling", "TooManyRequests", "RequestLimit", "Internal", "ServiceUnavailable")
_MAX_PAUSE_S = 60.0
_LIVE_METRICS = {
    "epoch": "epoch {}",
    "train:loss": "loss {}",
    "train:images_per_s": "{} images/s",
    "train:data_wait_pct": "data wait {} %",
}


@dataclass(frozen=True)
class Job:
    """One job; `session` is a boto3 session with a region. AWS errors pass through."""

    session: Any
    name: str
    kind: str = "Training"

    @cached_property
    def sagemaker(self) -> Any:
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

    def _call(self, verb: str) -> Any:
        operation = getattr(self.sagemaker, xform_name(f"{verb.title()}{self.kind}Job"))
        return operation(**{f"{self.kind}JobName": self.name})


def find_job(session: Any, name: str) -> tuple[Job, dict[str, Any]]:
    """The job of that name and its description; raises LaunchError if there is none."""
    for kind in KINDS:
        job = Job(session, name, kind)
        try:
            return job, job.describe()
        except exceptions.ClientError as error:
            unknown = error.response["Error"]["Code"] in _UNKNOWN
            if not unknown and not (kind in OPTIONAL_KINDS and is_denied(error)):
                raise
    raise LaunchError(
        f"{name}: no such job in {session.region_name}; `make sagemaker ARGS=status` lists the "
        "latest jobs"
    )


def open_job(arguments: Sequence[str]) -> tuple[Job, dict[str, Any]]:
    """The job that the command line names, and its description; raises LaunchError without one."""
    names, config = load_names(arguments)
    if len(names) != 1:
        raise LaunchError(
            f"{' '.join(names) or 'no job given'}: must be the name of one job; "
            "`make sagemaker ARGS=status` lists the latest"
        )
    return find_job(open_session(config.job.region), names[0])


# Status


def latest(session: Any, count: int = 10) -> list[str]:
    """One line for each of the latest jobs, newest first."""
    sagemaker = aws_client(session, "sagemaker")

    def newest(kind: str) -> list[Any]:
        listing = getattr(sagemaker, xform_name(f"List{kind}Jobs"))
        answer = listing(SortBy="CreationTime", SortOrder="Descending", MaxResults=count)
        return [
            (job["CreationTime"], kind, job[f"{kind}JobStatus"], job[f"{kind}JobName"])
            for job in answer[f"{kind}JobSummaries"]
        ]

    found = []
    for kind in KINDS:
        ask = partial(newest, kind)
        found += unless_denied(ask) if kind in OPTIONAL_KINDS else ask()
    return [
        f"{created:%Y-%m-%d %H:%M}  {kind:<10}  {state:<10}  {name}"
        for created, kind, state, name in sorted(found, reverse=True)[:count]
    ]


def unless_denied(ask: Callable[[], list[Any]]) -> list[Any]:
    """The answer; nothing if the user may not ask: training needs no permission to deploy."""
    try:
        return ask()
    except exceptions.ClientError as error:
        if not is_denied(error):
            raise
        return []


def summary(job: Job, description: dict[str, Any]) -> list[str]:
    """Lines for the user: state, machines, results, billed time, failure reason."""
    detail = description.get("SecondaryStatus")
    lines = [f"{job.name}: {job.state(description)}" + (f" ({detail})" if detail else "")]
    lines += _machines(description)
    if job.kind == "Training":
        lines += _training_results(description)
    elif job.kind == TUNING:
        lines += _trial_table(job)
    outputs = description.get("ProcessingOutputConfig", {}).get("Outputs", [])
    lines += [f"output: {each['S3Output']['S3Uri']}" for each in outputs]
    if transformed := description.get("TransformOutput"):
        lines.append(f"output: {transformed['S3OutputPath']}")
    for member in ("FailureReason", "ExitMessage"):
        if description.get(member):
            lines.append(f"reason: {description[member]}")
    return lines


def _machines(description: dict[str, Any]) -> list[str]:
    processing = description.get("ProcessingResources", {}).get("ClusterConfig")
    transform = description.get("TransformResources")
    resources = description.get("ResourceConfig") or processing or transform or {}
    # The second, if the job named several types.
    instance_type = resources.get("InstanceType") or resources.get("SelectedInstanceType")
    return [f"machines: {resources['InstanceCount']} x {instance_type}"] if instance_type else []


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
    """The S3 prefix of a training job's checkpoints, None without any.

    A trial of a tuning job writes to a folder with its own name, below the prefix of all trials.
    """
    uri: str | None = description.get("CheckpointConfig", {}).get("S3Uri")
    if uri and description.get("TuningJobArn"):
        return f"{uri.rstrip('/')}/{description['TrainingJobName']}"
    return uri


def _trial_table(job: Job) -> list[str]:
    """One line for each trial of a tuning job: name, state, objective and values, best first."""
    listing = "list_training_jobs_for_hyper_parameter_tuning_job"
    pages = job.sagemaker.get_paginator(listing).paginate(HyperParameterTuningJobName=job.name)
    trials = list(pages.search("TrainingJobSummaries[]"))
    if not trials:
        return []
    rows = [("trial", "state", "objective", "values"), *map(_row, sorted(trials, key=_place))]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _objective(trial: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = trial.get("FinalHyperParameterTuningJobObjectiveMetric", {})
    return found


def _place(trial: Mapping[str, Any]) -> tuple[bool, float, str]:
    """The best objective first, then those without one."""
    value = _objective(trial).get("Value")
    sign = 1 if _objective(trial).get("Type") == "Minimize" else -1
    return (value is None, sign * (value or 0.0), trial["TrainingJobName"])


def _row(trial: Mapping[str, Any]) -> tuple[str, str, str, str]:
    value, tuned = _objective(trial).get("Value"), trial.get("TunedHyperParameters", {})
    objective = "-" if value is None else f"{value:.6g}"
    values = " ".join(f"{key}={tuned[key]}" for key in sorted(tuned))
    return trial["TrainingJobName"], trial["TrainingJobStatus"], objective, values


# Logs


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
            for moment, text in self._events(stream):
                self._read.append((moment, host, text))
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


def follow(
    job: Job,
    console: Console | None = None,
    *,
    interval_s: float = 5.0,
    sleep: Callable[[float], None] = time.sleep,
) -> str | None:
    """Show the job's lines and state until it ends; returns its final state.

    Ctrl-C leaves the job running, and returns None.
    """
    console = console or Console()
    try:
        description = _Watch(job, console, sleep).run(interval_s)
    except KeyboardInterrupt:
        stop = f'make sagemaker ARGS="stop {job.name}"'
        console.out(f"{job.name} keeps running; {stop} stops it", highlight=False)
        return None
    for line in summary(job, description):
        console.out(line, highlight=False)
    return job.state(description)


class _Watch:
    def __init__(self, job: Job, console: Console, sleep: Callable[[float], None]) -> None:
        self.job, self.log = job, job.log()
        self.console, self.sleep = console, sleep
        self.metrics: dict[str, str] = {}
        self.state = ""

    def run(self, interval_s: float) -> dict[str, Any]:
        """Watch until the job ends; returns its last description."""
        with self.console.status("waiting for the job's status") as status:
            while True:
                description = self._retry(self.job.describe)
                self._show_new_lines()
                status.update(self._live_line(description))
                self.sleep(interval_s)
                if self.job.state(description) in FINAL:
                    # The last lines may reach CloudWatch after the job has ended.
                    self._show_new_lines()
                    return description

    def _show_new_lines(self) -> None:
        for host, text in self._retry(self.log.new_lines):
            self.console.out(f"{host} {text}", highlight=False)
            for metric in _LIVE_METRICS:
                if match := re.search(METRIC_REGEXES[metric], text):
                    self.metrics[metric] = match[1]

    def _live_line(self, description: dict[str, Any]) -> str:
        detail = description.get("SecondaryStatus")
        state = self.job.state(description) + (f" · {detail}" if detail else "")
        if state != self.state and not self.console.is_terminal:
            self.console.out(state, highlight=False)
        self.state = state
        known = [name for name in _LIVE_METRICS if name in self.metrics]
        return " · ".join([state, *(_LIVE_METRICS[m].format(self.metrics[m]) for m in known)])

    def _retry(self, call: Callable[[], T]) -> T:
        """The call's result; throttling and connection errors are retried without limit."""
        pause = 1.0
        while True:
            try:
                return call()
            except (exceptions.HTTPClientError, exceptions.ConnectionError) as error:
                reason = str(error)
            except exceptions.ClientError as error:
                reason = error.response["Error"]["Code"]
                if not reason.startswith(_TRANSIENT):
                    raise
            self.console.out(f"{reason}; retrying in {pause:.0f} s", highlight=False)
            self.sleep(pause)
            pause = min(pause * 2, _MAX_PAUSE_S)


# Stop and download


def stop(job: Job, description: dict[str, Any]) -> str:
    """Ask the job to stop, unless it has ended."""
    if job.state(description) in FINAL:
        return f"{job.name} has already ended: {job.state(description)}"
    job.stop()
    return f"{job.name} is stopping: it has 120 s to shut down"


def download(job: Job, description: dict[str, Any], *, checkpoints: bool) -> list[str]:
    """Download model, output and, if asked, checkpoints into `runs/<name>`; returns the paths.

    Each part is complete or absent; existing parts are not downloaded again. Raises LaunchError if
    the job has produced nothing yet.
    """
    name, folder, fetched = job.name, RUNS / job.name, list[Path]()
    if job.kind != "Training":
        shown = f'`make sagemaker ARGS="status {name}"`'
        what = "trials" if job.kind == TUNING else "output"
        raise LaunchError(f"{name}: not a training job; {shown} shows its {what}")
    s3 = aws_client(job.session, "s3")
    if model := description.get("ModelArtifacts", {}).get("S3ModelArtifacts"):
        output = model.removesuffix("model.tar.gz") + "output.tar.gz"
        fetched += _fetch_archive(s3, model, folder / "model")
        fetched += _fetch_archive(s3, output, folder / "output" / "data")
    kept = checkpoints_uri(description)
    if checkpoints and kept:
        fetched += _fetch_prefix(s3, kept, folder / "checkpoints")
    if not fetched:
        raise LaunchError(
            f"{name}: nothing to download yet, the job is {job.state(description)}"
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
        except exceptions.ClientError as error:
            if error.response["Error"]["Code"] == "404":
                return []
            raise
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(unpacked, filter="data")
        except tarfile.TarError as error:
            raise LaunchError(f"{uri}: cannot be unpacked safely: {error}") from error
        # POSIX renames onto an empty folder.
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
