"""Jobs on SageMaker: status, logs, following, stop, download."""

import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from botocore import exceptions, xform_name

from entry_point.job.archive import unpack_file
from entry_point.job.program import UserError
from entry_point.job.run_folder import PER_JOB, RunFolder
from entry_point.job.whole_file import naming
from launch import say
from launch.aws_cli import run_aws
from launch.sagemaker.aws import ATTEMPTS, aws_client
from launch.sagemaker.s3 import split_s3
from launch.sagemaker.training_request import host_counts

# The folder of local runs, to which jobs are downloaded.
RUNS = Path("runs")
FINAL = ("Completed", "Failed", "Stopped")
# Attempts per call while a job is followed, for outages of some minutes.
_PATIENT_ATTEMPTS = 50
_SHOWN = 10
_PAUSE_S = 5.0
# After the end of a job, its last lines may still be on their way.
_QUIET_POLLS = 3
# While a job is followed, lines of one host may come so much later than newer ones of another.
_LATE_MS = 600_000
_WAS_HERE = ": was here, so it was not downloaded; move it away to get the job's"


@dataclass(frozen=True)
class Job:
    """One job; `session` is a boto3 session with a region. AWS errors pass through."""

    session: Any
    name: str
    kind: str = "Training"
    """Or Processing."""

    def ask(self, verb: str, attempts: int = ATTEMPTS) -> dict[str, Any]:
        """Asks the service to `describe` or to `stop` the job; returns the answer."""
        sagemaker = aws_client(self.session, "sagemaker", attempts=attempts)
        call = getattr(sagemaker, f"{verb}_{self.kind.lower()}_job")
        answer: dict[str, Any] = call(**{f"{self.kind}JobName": self.name})
        return answer

    def state(self, description: dict[str, Any]) -> str:
        """InProgress, Stopping, or one of FINAL."""
        return str(description[f"{self.kind}JobStatus"])

    def log(self, attempts: int = ATTEMPTS) -> "Log":
        """Returns a reader of the lines that the job's hosts write."""
        logs = aws_client(self.session, "logs", attempts=attempts)
        return Log(logs, f"/aws/sagemaker/{self.kind}Jobs", self.name)


def find_job(session: Any, name: str) -> tuple[Job, dict[str, Any]]:
    """Returns the job of that name and its description; raises UserError if there is none."""
    for kind in ("Training", "Processing"):
        job = Job(session, name, kind)
        try:
            return job, job.ask("describe")
        except exceptions.ClientError as error:
            if error.response["Error"]["Code"] != "ValidationException":
                raise
    raise UserError(
        f"{name}: no such job in {session.region_name}; `make sagemaker ARGS=status` lists the "
        "latest jobs"
    )


def unfinished_jobs(session: Any) -> Iterator[str]:
    """Yields the names of the training jobs that have not ended."""
    pages = aws_client(session, "sagemaker").get_paginator("list_training_jobs")
    for state in ("InProgress", "Stopping"):
        yield from pages.paginate(StatusEquals=state).search(
            "TrainingJobSummaries[].TrainingJobName"
        )


def find_trained(session: Any, name: str) -> dict[str, Any]:
    """Returns SageMaker's description of a training job with a model; raises UserError."""
    job, description = find_job(session, name)
    if job.kind != "Training":
        raise UserError(f"{name}: is a {job.kind} job, and only training jobs leave a model")
    if not description.get("ModelArtifacts", {}).get("S3ModelArtifacts"):
        raise UserError(f"{name}: has no model, the job is {job.state(description)}")
    require_archive(description)
    return description


def require_archive(description: dict[str, Any]) -> None:
    """Raise UserError for a training job whose model is not in a model.tar.gz."""
    model, name = description["ModelArtifacts"]["S3ModelArtifacts"], description["TrainingJobName"]
    kind = description.get("OutputDataConfig", {}).get("CompressionType", "GZIP")
    if kind == "NONE" or not model.endswith(".tar.gz"):
        raise UserError(
            f"{name}: its output is not compressed (CompressionType={kind}), and this reads "
            f"model.tar.gz: aws s3 sync {model} runs/{name}/model copies the model here"
        )


# Status


def latest(session: Any) -> list[str]:
    """Returns one line for each of the latest jobs, newest first, then one for each endpoint."""
    sagemaker = aws_client(session, "sagemaker")

    def listed(noun: str, member: str, most: int | None) -> list[tuple[Any, str, str, str]]:
        pages = sagemaker.get_paginator(xform_name(f"List{noun}s")).paginate(
            SortBy="CreationTime", SortOrder="Descending", PaginationConfig={"MaxItems": most}
        )
        return [
            (each["CreationTime"], noun, each[f"{noun}Status"], each[f"{noun}Name"])
            for each in pages.search(f"{member}[]")
        ]

    kinds = ("TrainingJob", "ProcessingJob")
    jobs = [each for kind in kinds for each in listed(kind, f"{kind}Summaries", _SHOWN)]
    newest = sorted(jobs, key=itemgetter(0), reverse=True)[:_SHOWN]
    # Endpoints are billed until they are deleted: all of them.
    return [
        f"{created:%Y-%m-%d %H:%M}  {noun.removesuffix('Job'):<10}  {state:<10}  {name}"
        for created, noun, state, name in [*newest, *listed("Endpoint", "Endpoints", None)]
    ]


def summary(job: Job, description: dict[str, Any]) -> Iterator[str]:
    """Yields lines for the user: state, machines, results, billed time, failure reason."""
    yield f"{job.name}: {_state(job, description)}"
    processing = description.get("ProcessingResources", {}).get("ClusterConfig", {})
    machines = description.get("ResourceConfig", processing)
    # The second, if the job named several types.
    kind = machines.get("InstanceType") or machines.get("SelectedInstanceType")
    count = machines.get("SelectedInstanceCount") or host_counts(machines)[0]
    if kind:
        yield f"machines: {count} x {kind}"
    for metric in description.get("FinalMetricDataList", []):
        yield f"{metric['MetricName']}: {metric['Value']:.6g}"
    trained = description.get("TrainingTimeInSeconds")
    billed = description.get("BillableTimeInSeconds")
    if trained is not None and billed is not None:
        # The service reports the time of one machine and bills it for each.
        line = f"trained {trained} s, billed {billed} s"
        line += f" on each of {count} machines" if count > 1 else ""
        is_spot = description.get("EnableManagedSpotTraining") and trained
        yield line + (f": spot saved {100 * (1 - billed / trained):.0f} %" if is_spot else "")
    if checkpoints := checkpoints_uri(description):
        yield f"checkpoints: {checkpoints}"
    if model := description.get("ModelArtifacts", {}).get("S3ModelArtifacts"):
        yield f'model: {model}    make sagemaker ARGS="download {job.name}"'
    for output in description.get("ProcessingOutputConfig", {}).get("Outputs", []):
        yield f"output: {output['S3Output']['S3Uri']}"
    for member in ("FailureReason", "ExitMessage"):
        if description.get(member):
            yield f"reason: {description[member]}"


def _state(job: Job, description: dict[str, Any]) -> str:
    state, detail = job.state(description), description.get("SecondaryStatus")
    return state if detail in (None, state) else f"{state} ({detail})"


def checkpoints_uri(description: dict[str, Any]) -> str | None:
    """Returns the S3 prefix of a training job's checkpoints, None without any.

    Trials of a tuning job, and the jobs of one trainer of `launch.notebook`, write to a folder with
    the job's name below the prefix.
    """
    uri = str(description.get("CheckpointConfig", {}).get("S3Uri", "")).rstrip("/")
    is_shared = description.get("TuningJobArn") or PER_JOB in description.get("Environment", {})
    return (f"{uri}/{description['TrainingJobName']}" if is_shared else uri) if uri else None


# Logs


class Log:
    """Reads each line of a job once, from CloudWatch, which has one stream per host."""

    def __init__(self, logs: Any, group: str, job: str) -> None:
        self._pages = logs.get_paginator("filter_log_events")
        self._group, self._prefix = group, f"{job}/"
        self._seen: set[str] = set()
        self._newest = 0

    def new_lines(self, *, late: bool = True) -> Iterator[str]:
        """Yields `HOST LINE` for each line since the last call; none before the first line.

        `late`: also those that are much older than the newest one.
        """
        start = 0 if late else max(0, self._newest - _LATE_MS)
        pages = self._pages.paginate(
            logGroupName=self._group, logStreamNamePrefix=self._prefix, startTime=start
        )
        try:
            for event in pages.search("events[]"):
                if event["eventId"] not in self._seen:
                    self._seen.add(event["eventId"])
                    self._newest = max(self._newest, event["timestamp"])
                    host = event["logStreamName"].removeprefix(self._prefix).split("/")[0]
                    yield f"{host.rsplit('-', 1)[0]} {event['message'].rstrip()}"
        except exceptions.ClientError as error:
            # Group and streams do not exist before the first line.
            if error.response["Error"]["Code"] != "ResourceNotFoundException":
                raise


def follow(job: Job) -> int:
    """Print the job's lines and states until it ends; returns 0 for Completed, else 1.

    Throttling and lost connections are retried for some minutes. Whatever else ends the watch, such
    as Ctrl-C or a login that is over, leaves the job running, which a line on stderr says.
    """
    shown, quiet, has_ended = "", 0, False
    try:
        log = job.log(_PATIENT_ATTEMPTS)
        while True:
            description = job.ask("describe", _PATIENT_ATTEMPTS)
            has_ended = job.state(description) in FINAL
            count = _show(log.new_lines(late=has_ended))
            quiet = quiet + 1 if has_ended and not count else 0
            if _state(job, description) != shown:
                shown = _state(job, description)
                _show([shown])
            if quiet == _QUIET_POLLS:
                break
            time.sleep(_PAUSE_S)
    except BaseException:
        if not has_ended:
            stop = f'make sagemaker ARGS="stop {job.name}"'
            sys.stderr.write(f"{job.name} keeps running; {stop} stops it\n")
        raise
    _show(summary(job, description))
    return int(job.state(description) != "Completed")


def _show(lines: Iterable[str]) -> int:
    """Print lines; returns their number."""
    count = 0
    for line in lines:
        say(line)
        count += 1
    return count


# Stop and download


def stop(job: Job, description: dict[str, Any]) -> str:
    """Ask the job to stop, unless it has ended: its container gets SIGTERM, then 120 s."""
    if job.state(description) in FINAL:
        return f"{job.name} has already ended: {job.state(description)}"
    job.ask("stop")
    return f"{job.name} is stopping: it has 120 s to shut down"


def download(job: Job, description: dict[str, Any], *, checkpoints: bool) -> list[str]:
    """Download model, output and, if asked, checkpoints into `runs/<name>`; returns the paths.

    Model and output are each complete or absent. Existing ones, which may be of a run of this
    machine, are not downloaded again, and their line says so. Raises UserError if there is nothing.
    """
    name, folder, fetched = job.name, RUNS / job.name, list[str]()
    if job.kind != "Training":
        raise UserError(
            f'{name}: not a training job; `make sagemaker ARGS="status {name}"` shows its output'
        )
    if model := description.get("ModelArtifacts", {}).get("S3ModelArtifacts"):
        require_archive(description)
        s3 = aws_client(job.session, "s3")
        output = model.removesuffix("model.tar.gz") + "output.tar.gz"
        fetched += _fetch_archive(s3, model, folder / "model")
        fetched += _fetch_archive(s3, output, folder / "output" / "data")
    kept = checkpoints_uri(description)
    if checkpoints and kept:
        fetched += _fetch_checkpoints(kept, RunFolder(folder))
    if not fetched:
        why = f": S3 has no {model}" if model else f" yet, the job is {job.state(description)}"
        raise UserError(
            f"{name}: nothing to download{why}"
            + ("" if checkpoints else "; --checkpoints downloads its checkpoints")
        )
    return fetched


def _fetch_checkpoints(uri: str, run: RunFolder) -> list[str]:
    """Download what has changed of a running job's checkpoints, too; never over those of a run of
    this machine, which is the one that has a lock."""
    folder = run.root / "checkpoints"
    if run.lock.exists() and any(folder.glob("*")):
        return [f"{folder}{_WAS_HERE}"]
    if run_aws(["s3", "sync", f"{uri}/", str(folder)]):
        raise UserError(f"{run.root.name}: `aws s3 sync` of its checkpoints has failed; try again")
    return [str(folder)] if any(folder.glob("*")) else []


def _fetch_archive(s3: Any, uri: str, target: Path) -> list[str]:
    """Download and unpack a tar.gz; returns an empty list if S3 does not have it."""
    from boto3.exceptions import Boto3Error  # which takes long to import

    if target.is_dir() and any(target.iterdir()):
        return [f"{target}{_WAS_HERE}"]
    target.parent.mkdir(parents=True, exist_ok=True)
    bucket, key = split_s3(uri, "ModelArtifacts")
    with tempfile.TemporaryDirectory(prefix=".download-", dir=target.parent) as temporary:
        archive, unpacked = Path(temporary) / "archive", Path(temporary) / "unpacked"
        unpacked.mkdir()
        try:
            with naming(archive):
                s3.download_file(bucket, key, str(archive))
            unpack_file(archive, unpacked)
        except exceptions.ClientError as error:
            if error.response["Error"]["Code"] == "404":
                return []
            raise
        except Boto3Error as error:  # the connection breaks off again and again
            raise UserError(f"{uri}: cannot be downloaded: {error}; try again") from error
        except tarfile.TarError as error:
            raise UserError(f"{uri}: cannot be unpacked safely: {error}") from error
        # POSIX renames onto an empty folder.
        unpacked.rename(target)
    return [str(target)]
