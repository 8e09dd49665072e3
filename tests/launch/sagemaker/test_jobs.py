"""The job commands: launch, list, status, stop, logs, download, resume."""

import errno
import io
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import IncompleteReadError

from entry_point.job.run_folder import PER_JOB, RunFolder
from entry_point.job.run_lock import holding
from launch.sagemaker import __main__ as sagemaker
from launch.sagemaker import hosting
from launch.sagemaker.__main__ import next_steps
from launch.sagemaker.jobs import checkpoints_uri
from tests.launch.conftest import BUCKET, MINIMAL, REGION, Aws, Terminal, job_state
from tests.launch.sagemaker.cloudwatch import write_lines

RESULTS = "runs/the-job/output"
KEPT = "runs/checkpoints/the-job"


@pytest.fixture(autouse=True)
def _start_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloads go below the test's folder."""
    monkeypatch.chdir(tmp_path)


def describe(aws: Aws, *states: str, **more: Any) -> None:
    """Answer each question for the job with its next state, and these members."""
    aws.answers["DescribeTrainingJob"] = [job_state(state, **more) for state in states]


def test_a_launched_job_is_told_with_the_next_commands_listed_and_described(
    aws: Aws, terminal: Terminal
) -> None:
    assert f"no jobs in {REGION}" in terminal.out(sagemaker.main, "status")
    launch = ("train", *MINIMAL, "job.name=the-job", "trainer.epochs=1")
    out = terminal.out(sagemaker.main, *launch)
    assert "job the-job created" in out
    assert 'make sagemaker ARGS="status the-job"' in out
    assert f"https://{REGION}.console.aws.amazon.com/sagemaker/home?region={REGION}" in out
    (sent,) = aws.made("CreateTrainingJob")
    assert sent["HyperParameters"] == {"trainer.epochs": "1"}
    assert terminal.out(sagemaker.main, "status").split()[-1] == "the-job"
    out = terminal.out(sagemaker.main, "status", "the-job")
    assert out.startswith("the-job: Completed")
    assert "machines: 1 x ml.c7i.2xlarge" in out
    assert f"checkpoints: s3://{BUCKET}/{KEPT}" in out


def test_status_shows_billing_savings_metrics_and_failure_reason(
    aws: Aws, terminal: Terminal
) -> None:
    reason = "AlgorithmError: " + "x" * 900 + " the end"
    describe(
        aws,
        "Failed",
        FailureReason=reason,
        TrainingTimeInSeconds=1000,
        BillableTimeInSeconds=300,
        EnableManagedSpotTraining=True,
        ResourceConfig={"InstanceType": "ml.g6.4xlarge", "InstanceCount": 2},
        FinalMetricDataList=[{"MetricName": "validation:accuracy", "Value": 0.75}],
        ModelArtifacts={"S3ModelArtifacts": "s3://b/model.tar.gz"},
    )
    out = terminal.out(sagemaker.main, "status", "the-job")
    assert "trained 1000 s, billed 300 s on each of 2 machines: spot saved 70 %" in out
    assert "validation:accuracy: 0.75" in out
    assert "model: s3://b/model.tar.gz" in out
    assert f"reason: {reason}\n" in out


def test_status_counts_the_machines_that_a_job_got_of_several_types(
    aws: Aws, terminal: Terminal
) -> None:
    billed = {"TrainingTimeInSeconds": 90, "BillableTimeInSeconds": 90}
    types = [{"InstanceType": f"ml.{name}.12xlarge", "InstanceCount": 2} for name in ("g6", "g5")]
    chosen = {"SelectedInstanceType": "ml.g5.12xlarge", "SelectedInstanceCount": 2}
    describe(aws, "Completed", ResourceConfig={"InstancePreferences": types, **chosen}, **billed)
    out = terminal.out(sagemaker.main, "status", "the-job")
    assert "machines: 2 x ml.g5.12xlarge" in out and "billed 90 s on each of 2 machines" in out
    describe(aws, "Completed", ResourceConfig={"InstanceGroups": types}, **billed)
    assert "billed 90 s on each of 4 machines" in terminal.out(sagemaker.main, "status", "the-job")


@pytest.mark.usefixtures("aws")
@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("status nothing", f"nothing: no such job in {REGION}"),
        ("stop nothing", f"nothing: no such job in {REGION}"),
        ("status a b", "a b: must be the name of one job"),
        ("status a regoin=x", "regoin=x: status takes the name of a job, and no settings"),
        ("stop a --wait", "--wait, --follow: stop watches no job; `logs JOB --follow` does"),
        ("train --checkpoints", "--checkpoints: train has no such option; drop it"),
        ("train resume_from=nothing", f"nothing: no such job in {REGION}"),
    ],
)
def test_a_name_or_word_that_a_command_does_not_know_is_one_line(
    terminal: Terminal, command: str, line: str
) -> None:
    assert terminal.refusal(sagemaker.main, *command.split()).startswith(line)


@pytest.mark.usefixtures("aws")
def test_a_missing_job_name_is_told_before_a_missing_region(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert "no job given" in terminal.refusal(sagemaker.main, "logs")


def test_stop_calls_the_service_once_and_not_for_ended_jobs(aws: Aws, terminal: Terminal) -> None:
    aws.answers["StopTrainingJob"] = [(200, {})]
    describe(aws, "InProgress", "Completed")
    assert "is stopping: it has 120 s" in terminal.out(sagemaker.main, "stop", "the-job")
    assert "already ended: Completed" in terminal.out(sagemaker.main, "stop", "the-job")
    assert aws.made("StopTrainingJob") == [{"TrainingJobName": "the-job"}]


@pytest.mark.parametrize("command", ["stop", "download"])
def test_a_dry_run_does_nothing(
    aws: Aws, terminal: Terminal, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("DRY_RUN", "1")
    line = terminal.refusal(sagemaker.main, command, "the-job")
    assert f"DRY_RUN=1: {command} has no dry run" in line and not aws.calls


@pytest.mark.parametrize(
    ("region", "host"),
    [
        ("ap-southeast-2", "ap-southeast-2.console.aws.amazon.com"),
        ("cn-north-1", "cn-north-1.console.amazonaws.cn"),
        ("us-gov-west-1", "us-gov-west-1.console.amazonaws-us-gov.com"),
    ],
)
def test_each_partition_has_its_console(region: str, host: str) -> None:
    assert f"https://{host}/sagemaker/" in next_steps("j", region)[-1]


def test_logs_prints_the_lines_of_all_hosts(aws: Aws, terminal: Terminal) -> None:
    describe(aws, "Completed")
    assert terminal.out(sagemaker.main, "logs", "the-job") == ""
    write_lines(aws, {"algo-1": [(1, "one"), (3, "[three]")], "algo-2": [(2, "two\n")]})
    lines = terminal.out(sagemaker.main, "logs", "the-job").splitlines()
    assert sorted(lines) == ["algo-1 [three]", "algo-1 one", "algo-2 two"]


def archive(name: str, text: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text.encode()))
    return packed.getvalue()


@pytest.fixture
def ended(aws: Aws, bucket: Any) -> Any:
    """The bucket of a job that has left a model, an output and two checkpoints."""
    objects = {
        f"{RESULTS}/model.tar.gz": archive("model.pt", "weights"),
        f"{RESULTS}/output.tar.gz": archive("a/report", "fine"),
        **{f"{KEPT}/step-{number}/state.pt": b"state %d" % number for number in (1, 2)},
    }
    for key, body in objects.items():
        bucket.put_object(Bucket=BUCKET, Key=key, Body=body)
    describe(
        aws,
        "Completed",
        ModelArtifacts={"S3ModelArtifacts": f"s3://{BUCKET}/{RESULTS}/model.tar.gz"},
        CheckpointConfig={"S3Uri": f"s3://{BUCKET}/{KEPT}"},
    )
    return bucket


@pytest.mark.usefixtures("ended")
def test_download_unpacks_into_a_normal_run_folder(terminal: Terminal, tmp_path: Path) -> None:
    terminal.out(sagemaker.main, "download", "the-job")
    run = tmp_path / "runs" / "the-job"
    assert (run / "model" / "model.pt").read_text() == "weights"
    assert (run / "output" / "data" / "a" / "report").read_text() == "fine"
    assert not (run / "checkpoints").exists()
    assert not list(run.rglob(".download-*"))


@pytest.mark.usefixtures("aws_cli")
def test_download_includes_checkpoints_and_keeps_existing_parts(
    ended: Any, terminal: Terminal, tmp_path: Path
) -> None:
    terminal.out(sagemaker.main, "download", "the-job", "--checkpoints")
    run = tmp_path / "runs" / "the-job"
    assert (run / "checkpoints" / "step-2" / "state.pt").read_text() == "state 2"
    (run / "model" / "model.pt").write_text("changed here")
    ended.put_object(Bucket=BUCKET, Key=f"{KEPT}/../../../../evil", Body=b"x")
    # The CLI skips what is outside of the folder, and says so by its exit code.
    lines = terminal.refusals(sagemaker.main, "download", "the-job", "--checkpoints")
    assert "`aws s3 sync` of its checkpoints has failed" in lines[-1]
    assert (run / "model" / "model.pt").read_text() == "changed here"
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.usefixtures("ended")
def test_a_run_of_this_machine_with_the_name_of_a_job_is_not_taken_for_the_job(
    terminal: Terminal, tmp_path: Path
) -> None:
    (model := tmp_path / "runs/the-job/model").mkdir(parents=True)
    (model / "model.pt").write_text("trained here")
    first, second = terminal.out(sagemaker.main, "download", "the-job").splitlines()
    assert first == (
        "runs/the-job/model: was here, so it was not downloaded; move it away to get the job's"
    )
    assert second == "runs/the-job/output/data"
    assert (model / "model.pt").read_text() == "trained here"


@pytest.mark.usefixtures("aws_cli", "ended")
def test_checkpoints_of_a_run_of_this_machine_are_not_replaced_by_the_jobs(
    terminal: Terminal, tmp_path: Path
) -> None:
    run = RunFolder(tmp_path / "runs/the-job")
    (state := run.checkpoints / "step-2/state.pt").parent.mkdir(parents=True)
    state.write_text("trained here")
    with holding(run):
        pass
    lines = terminal.out(sagemaker.main, "download", "the-job", "--checkpoints").splitlines()
    assert lines[-1].startswith("runs/the-job/checkpoints: was here, so it was not downloaded;")
    assert [state.read_text()] == [file.read_text() for file in run.checkpoints.rglob("*.pt")]
    run.checkpoints.rename(tmp_path / "away")
    terminal.out(sagemaker.main, "download", "the-job", "--checkpoints")
    assert state.read_text() == "state 2"


@pytest.mark.usefixtures("aws_cli")
def test_checkpoints_that_s3_does_not_have_are_not_said_to_be_downloaded(
    ended: Any, terminal: Terminal
) -> None:
    for number in (1, 2):
        ended.delete_object(Bucket=BUCKET, Key=f"{KEPT}/step-{number}/state.pt")
    lines = terminal.out(sagemaker.main, "download", "the-job", "--checkpoints").splitlines()
    assert lines == ["runs/the-job/model", "runs/the-job/output/data"]


def test_download_fetches_what_there_is(
    aws: Aws, ended: Any, terminal: Terminal, tmp_path: Path
) -> None:
    described = aws.answers["DescribeTrainingJob"]
    ended.delete_object(Bucket=BUCKET, Key=f"{RESULTS}/model.tar.gz")
    ended.delete_object(Bucket=BUCKET, Key=f"{RESULTS}/output.tar.gz")
    line = terminal.refusal(sagemaker.main, "download", "the-job")
    gone = f"S3 has no s3://{BUCKET}/{RESULTS}/model.tar.gz"
    assert line.startswith(f"the-job: nothing to download: {gone}; --checkpoints")
    describe(aws, "InProgress")
    line = terminal.refusal(sagemaker.main, "download", "the-job")
    assert line.startswith("the-job: nothing to download yet, the job is InProgress; --checkpoints")
    aws.answers["DescribeTrainingJob"] = described
    ended.put_object(Bucket=BUCKET, Key=f"{RESULTS}/model.tar.gz", Body=archive("a", "b"))
    terminal.out(sagemaker.main, "download", "the-job")
    assert (tmp_path / "runs/the-job/model/a").read_text() == "b"


@pytest.mark.parametrize(
    "body",
    [archive("../../../evil", "x"), archive("evil", "0" * 2_000_000), b"<html>a page</html>"],
    ids=["outside", "bomb", "no archive"],
)
def test_an_archive_that_is_unsafe_or_none_is_refused(
    ended: Any, terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    monkeypatch.setattr("entry_point.job.archive._BYTES_MORE", 1_000_000)
    ended.put_object(Bucket=BUCKET, Key=f"{RESULTS}/model.tar.gz", Body=body)
    line = terminal.refusal(sagemaker.main, "download", "the-job")
    assert "model.tar.gz: cannot be unpacked safely: " in line
    assert not list(tmp_path.rglob("*evil*"))
    assert not (tmp_path / "runs" / "the-job" / "model").exists()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), r".*runs/.*: No space left on device"),
        (IncompleteReadError(actual_bytes=1, expected_bytes=9), r"s3://.*model\.tar\.gz: .*again"),
    ],
)
def test_a_download_that_breaks_off_is_one_line_and_leaves_nothing(
    error: Exception,
    line: str,
    ended: Any,  # noqa: ARG001
    terminal: Terminal,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **_named: object) -> bytes:
        raise error

    monkeypatch.setattr("botocore.response.StreamingBody.read", fail)
    assert re.fullmatch(line, terminal.refusal(sagemaker.main, "download", "the-job"))
    assert not [*(tmp_path / "runs" / "the-job").iterdir()]


@pytest.mark.parametrize(
    ("main", "command", "line"),
    [
        (sagemaker.main, "download", "not a training job; `make sagemaker"),
        (hosting.main, "deploy", "is a Processing job, and only training jobs leave a model"),
    ],
)
def test_a_processing_job_has_no_model(
    aws: Aws, terminal: Terminal, main: Any, command: str, line: str
) -> None:
    aws.answers["DescribeProcessingJob"] = [(200, {"ProcessingJobStatus": "Completed"})]
    assert terminal.refusal(main, command, "the-job").startswith(f"the-job: {line}")


@pytest.mark.parametrize("command", ["download", "predict", "deploy"])
def test_a_model_that_is_not_an_archive_is_refused(
    aws: Aws, terminal: Terminal, command: str
) -> None:
    describe(
        aws,
        "Completed",
        ModelArtifacts={"S3ModelArtifacts": f"s3://{BUCKET}/{RESULTS}/model/"},
        OutputDataConfig={"CompressionType": "NONE", "S3OutputPath": f"s3://{BUCKET}/runs"},
    )
    uris = [f"input=s3://{BUCKET}/a", f"output_dir=s3://{BUCKET}/b"]
    words = [command, "the-job", *(uris if command == "predict" else [])]
    main = hosting.main if command == "deploy" else sagemaker.main
    line = terminal.refusal(main, *words)
    assert line.startswith("the-job: its output is not compressed (CompressionType=NONE)")


def test_a_resumed_job_gets_the_checkpoints_of_the_earlier_one_if_there_are_any(
    aws: Aws, bucket: Any, terminal: Terminal
) -> None:
    describe(aws, "Stopped", CheckpointConfig={"S3Uri": f"s3://{BUCKET}/runs/kept"})
    launch = ("train", *MINIMAL, "resume_from=the-job")
    # Those of a job whose name begins in the same way, and of two that share the prefix.
    for key in ("kept-2/step-1.pt", "kept/one/step-1.pt", "kept/two/step-1.pt"):
        bucket.put_object(Bucket=BUCKET, Key=f"runs/{key}", Body=b"x")
    line = terminal.refusal(sagemaker.main, *launch)
    assert line.startswith(f"resume_from=s3://{BUCKET}/runs/kept/step-: S3 has no object there")
    assert f"`aws s3 ls s3://{BUCKET}/runs/kept/` shows what it has" in line
    bucket.put_object(Bucket=BUCKET, Key="runs/kept/step-1.pt", Body=b"x")
    terminal.out(sagemaker.main, *launch)
    (sent,) = aws.made("CreateTrainingJob")
    assert sent["CheckpointConfig"]["S3Uri"] == f"s3://{BUCKET}/runs/kept"


def test_a_job_without_checkpoints_cannot_be_resumed(aws: Aws, terminal: Terminal) -> None:
    describe(aws, "Stopped")
    line = terminal.refusal(sagemaker.main, "train", *MINIMAL, "resume_from=the-job")
    assert line == "resume_from=the-job: that job has no checkpoints"
    assert not aws.made("CreateTrainingJob")


@pytest.mark.parametrize("given", ["the-job", f"s3://{BUCKET}/runs/kept/"])
def test_checkpoints_that_a_running_job_resumed_from_are_not_given_to_another(
    aws: Aws, bucket: Any, terminal: Terminal, given: str
) -> None:
    bucket.put_object(Bucket=BUCKET, Key="runs/kept/step-1", Body=b"x")
    kept = {"CheckpointConfig": {"S3Uri": f"s3://{BUCKET}/runs/kept"}}
    states = ["Stopped"] if given == "the-job" else []
    describe(aws, *states, "InProgress", **kept)
    listed = {"TrainingJobArn": "arn:aws:x", "CreationTime": 1.0, "TrainingJobStatus": "InProgress"}
    jobs = {"TrainingJobSummaries": [{**listed, "TrainingJobName": "resumed"}]}
    aws.answers["ListTrainingJobs"] = [(200, jobs)]
    line = terminal.refusal(sagemaker.main, "train", *MINIMAL, f"resume_from={given}")
    assert line.startswith(f"resume_from={given}: resumed has not ended, and two jobs must not")
    assert 'make sagemaker ARGS="stop resumed"' in line and not aws.made("CreateTrainingJob")


@pytest.mark.parametrize(
    ("more", "folder"),
    [
        ({"Environment": {"X": "1"}}, ""),
        ({"Environment": {PER_JOB: "true"}}, "/the-job"),
        ({"TuningJobArn": "arn:aws:x"}, "/the-job"),
    ],
)
def test_the_checkpoints_of_a_job_are_where_its_container_wrote_them(
    more: dict[str, Any], folder: str
) -> None:
    config = {"S3Uri": "s3://b/checkpoints", "LocalPath": "/opt/ml/checkpoints"}
    found = checkpoints_uri({"TrainingJobName": "the-job", "CheckpointConfig": config, **more})
    assert found == f"s3://b/checkpoints{folder}"
