"""The job commands: launch, list, status, stop, logs, download, resume."""

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from entry_point.job.run_folder import PER_JOB
from launch.sagemaker import __main__ as sagemaker
from launch.sagemaker import hosting
from launch.sagemaker.__main__ import next_steps
from launch.sagemaker.jobs import checkpoints_uri
from tests.launch.conftest import BUCKET, REGION, ROLE, Aws
from tests.launch.sagemaker.cloudwatch import write_lines


@pytest.fixture(autouse=True)
def _start_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloads go below the test's folder."""
    monkeypatch.chdir(tmp_path)


def launch(aws: Aws, *more: str, name: str = "the-job") -> None:
    arguments = [
        f"target.image={aws.pretend_image()}",
        f"job.role={ROLE}",
        f"job.output=s3://{BUCKET}/x",
        f"job.name={name}",
        *more,
    ]
    assert sagemaker.main(["train", *arguments]) == 0


def description(status: str = "Completed", **more: Any) -> dict[str, Any]:
    return {
        "TrainingJobName": "the-job",
        "TrainingJobStatus": status,
        "SecondaryStatus": "Training" if status == "InProgress" else status,
        **more,
    }


def test_launch_prints_the_job_and_the_next_commands(
    aws: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    launch(aws, "trainer.epochs=1")
    out = capsys.readouterr().out
    assert "job the-job created" in out
    assert 'make sagemaker ARGS="status the-job"' in out
    assert f"https://{REGION}.console.aws.amazon.com/sagemaker/home?region={REGION}" in out
    (sent,) = aws.made("CreateTrainingJob")
    assert sent["HyperParameters"] == {"trainer.epochs": "1"}


def test_status_lists_the_latest_jobs_and_describes_one(
    aws: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sagemaker.main(["status"]) == 0
    assert f"no jobs in {REGION}" in capsys.readouterr().out
    launch(aws)
    capsys.readouterr()
    assert sagemaker.main(["status"]) == 0
    assert capsys.readouterr().out.split()[-1] == "the-job"
    assert sagemaker.main(["status", "the-job"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("the-job: Completed")
    assert "machines: 1 x ml.c7i.2xlarge" in out
    assert f"checkpoints: s3://{BUCKET}/x/checkpoints/the-job" in out


def test_status_shows_billing_savings_metrics_and_failure_reason(
    aws: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = "AlgorithmError: " + "x" * 900 + " the end"
    aws.answers["DescribeTrainingJob"] = [
        (
            200,
            description(
                "Failed",
                FailureReason=reason,
                TrainingTimeInSeconds=1000,
                BillableTimeInSeconds=300,
                EnableManagedSpotTraining=True,
                ResourceConfig={"InstanceType": "ml.g6.4xlarge", "InstanceCount": 2},
                FinalMetricDataList=[{"MetricName": "validation:accuracy", "Value": 0.75}],
                ModelArtifacts={"S3ModelArtifacts": "s3://b/model.tar.gz"},
            ),
        )
    ]
    assert sagemaker.main(["status", "the-job"]) == 0
    out = capsys.readouterr().out
    assert "trained 1000 s, billed 300 s on each of 2 machines: spot saved 70 %" in out
    assert "validation:accuracy: 0.75" in out
    assert "model: s3://b/model.tar.gz" in out
    assert f"reason: {reason}\n" in out


@pytest.mark.usefixtures("aws")
@pytest.mark.parametrize("command", ["status", "stop", "logs", "download"])
def test_unknown_job_is_one_line(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert sagemaker.main([command, "nothing"]) == 1
    err = capsys.readouterr().err
    assert f"nothing: no such job in {REGION}" in err and err.count("\n") == 1


@pytest.mark.parametrize("command", ["stop", "logs", "download"])
@pytest.mark.usefixtures("aws")
def test_missing_job_name_is_reported_before_a_missing_region(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert sagemaker.main([command]) == 1
    assert "no job given" in capsys.readouterr().err


@pytest.mark.parametrize("argument", ["b", "regoin=x", "job.regoin=x"])
def test_unknown_argument_is_named(capsys: pytest.CaptureFixture[str], argument: str) -> None:
    assert sagemaker.main(["status", "a", argument]) == 1
    err = capsys.readouterr().err
    assert argument.removeprefix("job.").split("=")[0] in err and err.count("\n") == 1


def test_stop_calls_the_service_once_and_not_for_ended_jobs(
    aws: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.answers["StopTrainingJob"] = [(200, {})]
    aws.answers["DescribeTrainingJob"] = [(200, description("InProgress")), (200, description())]
    assert sagemaker.main(["stop", "the-job"]) == 0
    assert "the-job is stopping: it has 120 s" in capsys.readouterr().out
    assert sagemaker.main(["stop", "the-job"]) == 0
    assert "has already ended: Completed" in capsys.readouterr().out
    assert aws.made("StopTrainingJob") == [{"TrainingJobName": "the-job"}]


@pytest.mark.parametrize("command", ["stop", "download"])
def test_a_dry_run_does_nothing(
    aws: Aws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("DRY_RUN", "1")
    assert sagemaker.main([command, "the-job"]) == 1
    assert f"DRY_RUN=1: {command} has no dry run" in capsys.readouterr().err and not aws.calls


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


def test_logs_prints_the_lines_of_all_hosts(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    aws.answers["DescribeTrainingJob"] = [(200, description())]
    assert sagemaker.main(["logs", "the-job"]) == 0
    assert capsys.readouterr().out == ""
    write_lines(aws, {"algo-1": [(1, "one"), (3, "[three]")], "algo-2": [(2, "two\n")]})
    assert sagemaker.main(["logs", "the-job"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == ["algo-1 [three]", "algo-1 one", "algo-2 two"]


def archive(**files: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name.replace("__", "/"))
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return packed.getvalue()


def ended_with_results(aws: Aws, s3: Any) -> None:
    folder = "x/the-job/output"
    s3.put_object(Bucket=BUCKET, Key=f"{folder}/model.tar.gz", Body=archive(model_pt="weights"))
    s3.put_object(Bucket=BUCKET, Key=f"{folder}/output.tar.gz", Body=archive(a__report="fine"))
    for number in (1, 2):
        key = f"x/checkpoints/the-job/step-{number}/state.pt"
        s3.put_object(Bucket=BUCKET, Key=key, Body=f"state {number}".encode())
    aws.answers["DescribeTrainingJob"] = [
        (
            200,
            description(
                ModelArtifacts={"S3ModelArtifacts": f"s3://{BUCKET}/{folder}/model.tar.gz"},
                CheckpointConfig={"S3Uri": f"s3://{BUCKET}/x/checkpoints/the-job"},
            ),
        )
    ]


def test_download_unpacks_into_a_normal_run_folder(aws: Aws, bucket: Any, tmp_path: Path) -> None:
    ended_with_results(aws, bucket)
    assert sagemaker.main(["download", "the-job"]) == 0
    run = tmp_path / "runs" / "the-job"
    assert (run / "model" / "model_pt").read_text() == "weights"
    assert (run / "output" / "data" / "a" / "report").read_text() == "fine"
    assert not (run / "checkpoints").exists()
    assert not list(run.rglob(".download-*"))


def test_download_includes_checkpoints_and_keeps_existing_parts(
    aws_cli: Aws, bucket: Any, tmp_path: Path
) -> None:
    ended_with_results(aws_cli, bucket)
    assert sagemaker.main(["download", "the-job", "--checkpoints"]) == 0
    run = tmp_path / "runs" / "the-job"
    assert (run / "checkpoints" / "step-2" / "state.pt").read_text() == "state 2"
    (run / "model" / "model_pt").write_text("changed here")
    bucket.put_object(Bucket=BUCKET, Key="x/checkpoints/the-job/../../../../evil", Body=b"x")
    # The CLI skips what is outside of the folder, and says so by its exit code.
    assert sagemaker.main(["download", "the-job", "--checkpoints"]) == 1
    assert (run / "model" / "model_pt").read_text() == "changed here"
    assert not list(tmp_path.rglob("evil"))


def test_download_of_a_job_without_output_fetches_the_model(
    aws: Aws, bucket: Any, tmp_path: Path
) -> None:
    ended_with_results(aws, bucket)
    bucket.delete_object(Bucket=BUCKET, Key="x/the-job/output/output.tar.gz")
    assert sagemaker.main(["download", "the-job"]) == 0
    assert [path.name for path in (tmp_path / "runs" / "the-job").iterdir()] == ["model", "output"]


def test_download_without_results_is_one_line(
    aws: Aws, bucket: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    ended_with_results(aws, bucket)
    for name in ("model", "output"):
        bucket.delete_object(Bucket=BUCKET, Key=f"x/the-job/output/{name}.tar.gz")
    assert sagemaker.main(["download", "the-job"]) == 1
    assert "nothing to download yet" in capsys.readouterr().err


@pytest.mark.parametrize(
    "packed",
    [{"..__..__..__evil": "x"}, {"evil": "0" * 2_000_000}, {}],
    ids=["outside", "bomb", "no archive"],
)
def test_an_archive_that_is_unsafe_or_none_is_refused(
    aws: Aws,
    bucket: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    packed: dict[str, str],
) -> None:
    monkeypatch.setattr("entry_point.job.archive._BYTES_MORE", 1_000_000)
    ended_with_results(aws, bucket)
    body = archive(**packed) if packed else b"<html>a page</html>"
    bucket.put_object(Bucket=BUCKET, Key="x/the-job/output/model.tar.gz", Body=body)
    assert sagemaker.main(["download", "the-job"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "model.tar.gz: cannot be unpacked safely: " in line
    assert not list(tmp_path.rglob("*evil*"))
    assert not (tmp_path / "runs" / "the-job" / "model").exists()


def test_resumed_job_gets_the_checkpoint_prefix_of_the_earlier_job(aws: Aws) -> None:
    kept = {"CheckpointConfig": {"S3Uri": f"s3://{BUCKET}/kept"}}
    aws.answers["DescribeTrainingJob"] = [(200, description("Stopped", **kept))]
    aws.client("s3").put_object(Bucket=BUCKET, Key="kept/step-1", Body=b"x")
    launch(aws, "resume_from=the-job", name="next")
    (sent,) = aws.made("CreateTrainingJob")
    assert sent["CheckpointConfig"]["S3Uri"] == f"s3://{BUCKET}/kept"
    assert len(aws.made("DescribeTrainingJob")) == 1


def test_the_checkpoints_that_were_found_are_checked_before_the_launch(
    aws: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = {"CheckpointConfig": {"S3Uri": f"s3://{BUCKET}/expired"}}
    aws.answers["DescribeTrainingJob"] = [(200, description("Stopped", **kept))]
    minimal = [f"target.image={aws.pretend_image()}", f"job.role={ROLE}"]
    output = f"job.output=s3://{BUCKET}/x"
    assert sagemaker.main(["train", *minimal, output, "resume_from=the-job"]) == 1
    line = capsys.readouterr().err
    assert line.startswith(f"resume_from=s3://{BUCKET}/expired: S3 has no object there")
    assert not aws.made("CreateTrainingJob")


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (description("InProgress"), 'make sagemaker ARGS="stop the-job"'),
        (description("Stopped"), "has no checkpoints"),
    ],
)
def test_job_that_cannot_be_resumed_is_refused(
    aws: Aws, capsys: pytest.CaptureFixture[str], before: dict[str, Any], reason: str
) -> None:
    image = aws.pretend_image()
    aws.answers["DescribeTrainingJob"] = [(200, before)]
    minimal = [f"target.image={image}", f"job.role={ROLE}", f"job.output=s3://{BUCKET}/x"]
    assert sagemaker.main(["train", *minimal, "resume_from=the-job"]) == 1
    assert reason in capsys.readouterr().err
    assert not aws.made("CreateTrainingJob")


@pytest.mark.parametrize(
    ("more", "folder"),
    [
        ({}, ""),
        ({"Environment": {"X": "1"}}, ""),
        ({"Environment": {PER_JOB: "true"}}, "/the-job"),
        ({"TuningJobArn": "arn:aws:x"}, "/the-job"),
    ],
)
def test_the_checkpoints_of_a_job_are_where_its_container_wrote_them(
    more: dict[str, Any], folder: str
) -> None:
    config = {"S3Uri": "s3://b/checkpoints", "LocalPath": "/opt/ml/checkpoints"}
    found = checkpoints_uri(description(CheckpointConfig=config, **more))
    assert found == f"s3://b/checkpoints{folder}"


@pytest.mark.parametrize("command", ["download", "predict", "deploy"])
def test_a_model_that_is_not_an_archive_is_refused(
    aws: Aws, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    members: Any = {
        "ModelArtifacts": {"S3ModelArtifacts": f"s3://{BUCKET}/x/the-job/output/model/"},
        "OutputDataConfig": {"CompressionType": "NONE", "S3OutputPath": f"s3://{BUCKET}/x"},
    }
    aws.answers["DescribeTrainingJob"] = [(200, description(**members))]
    if command == "deploy":
        code = hosting.main(["the-job"])
    else:
        uris = [f"input=s3://{BUCKET}/a", f"output_dir=s3://{BUCKET}/b"]
        code = sagemaker.main([command, "the-job", *(uris if command == "predict" else [])])
    assert code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("the-job: its output is not compressed (CompressionType=NONE)")
