"""Predicting on SageMaker: the request, the parts of the hosts."""

import json
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from entry_point import __main__ as image
from entry_point.data.sources.table_folder import TABLE_SUFFIXES
from entry_point.job.run_folder import CONTAINER_ROOT
from launch.sagemaker import __main__ as sagemaker
from launch.sagemaker.processing import TABLES
from tests.entry_point.prediction.predicted import rows
from tests.entry_point.serving.served_model import write_model
from tests.launch.conftest import BUCKET, ROLE, Aws
from tests.launch.minimal_job import IMAGE
from tests.photographs import write_photo_folder

HOSTS = 2
JOB = "the-job"
INPUT, OUTPUT = f"s3://{BUCKET}/photos", f"s3://{BUCKET}/answers"
MODEL = f"s3://{BUCKET}/runs/{JOB}/output/model.tar.gz"
MINIMAL = [f"input={INPUT}/", f"output_dir={OUTPUT}/"]
SETTINGS = [f"job.role={ROLE}", f"target.image={IMAGE}"]


@pytest.fixture
def dry_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRY_RUN", "1")


def run(arguments: Sequence[str]) -> int:
    return sagemaker.main(["predict", *arguments])


def error_lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert run(arguments) == 1
    return capsys.readouterr().err.splitlines()


def test_the_launcher_knows_the_suffixes_of_tables() -> None:
    assert set(TABLES) == set(TABLE_SUFFIXES)


@pytest.mark.usefixtures("dry_run")
@pytest.mark.parametrize("model", [MODEL, JOB])
def test_each_host_gets_a_share_of_the_images_and_the_whole_model(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [f"job.output=s3://{BUCKET}/runs", f"target.instance_count={HOSTS}", "output=features"]
    assert run([model, *MINIMAL, *SETTINGS, *more]) == 0
    request = json.loads(capsys.readouterr().out)
    source, archive = (entry["S3Input"] for entry in request["ProcessingInputs"])
    assert source["S3Uri"] == f"{INPUT}/"
    assert source["S3DataDistributionType"] == "ShardedByS3Key"
    assert source["LocalPath"] == f"{CONTAINER_ROOT}/processing/input"
    assert archive["S3Uri"] == MODEL
    assert archive["S3DataDistributionType"] == "FullyReplicated"
    (output,) = request["ProcessingOutputConfig"]["Outputs"]
    assert output["S3Output"]["S3Uri"] == OUTPUT
    assert request["AppSpecification"]["ContainerArguments"] == [
        "predict",
        "output=features",
        f"model_dir='{CONTAINER_ROOT}/processing/model/model.tar.gz'",
    ]
    assert request["ProcessingResources"]["ClusterConfig"]["InstanceCount"] == HOSTS


@pytest.mark.usefixtures("dry_run")
@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["input=photos"], "input=photos: must be s3://bucket/prefix"),
        ([f"output_dir={INPUT}/x"], f"output_dir={INPUT}/x: must not be inside input="),
        ([f"input={INPUT}/list.csv"], f"input={INPUT}/list.csv: needs images=s3://"),
        ([f"images={INPUT}"], f"images={INPUT}: only for a table"),
        (["part=1/2"], "part=1/2: set by the launcher"),
        (["target.spot=true"], "target.spot: not available for Processing jobs"),
        (["output=logits"], "output=logits"),
        (["btch_size=8"], "btch_size=8"),
        (["job.request.CheckpointConfig={}"], 'Unknown parameter in input: "CheckpointConfig"'),
        (["s3://b/a=1/m.tar.gz"], "the-job s3://b/a=1/m.tar.gz: must be the name of one job"),
        (
            ["job.request.ProcessingInputs=[]"],
            "job.request.ProcessingInputs: set by the launcher",
        ),
        (["job.environment.ML_ROOT=/tmp"], "job.environment.ML_ROOT=/tmp: SageMaker"),
        (
            ["job.request.ProcessingResources.ClusterConfig.InstanceType=g6.xlarge"],
            "job.request.ProcessingResources.ClusterConfig.InstanceType=g6.xlarge: must be a type",
        ),
        (["other-job"], "the-job other-job: must be the name of one job"),
        (["target.image=null"], "target.image is missing"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_its_key(
    overrides: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [JOB, *MINIMAL, *SETTINGS, f"job.output=s3://{BUCKET}", *overrides]
    (found,) = error_lines(capsys, *arguments)
    assert found.startswith(line)


@pytest.mark.usefixtures("dry_run")
@pytest.mark.parametrize("name", ["s3://b/model/", "s3://b/model"])
def test_a_model_that_is_no_archive_is_refused(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = error_lines(capsys, name, *MINIMAL, *SETTINGS)
    assert line == f"{name}: must be a model.tar.gz, as a training job leaves it"


@pytest.mark.usefixtures("dry_run")
@pytest.mark.parametrize(("folder", "warned"), [("runs/answers", False), ("runs-2", True)])
def test_an_output_outside_of_job_output_is_named(
    folder: str, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [f"job.output=s3://{BUCKET}/runs", f"output_dir=s3://{BUCKET}/{folder}"]
    assert run([JOB, *MINIMAL, *SETTINGS, *more]) == 0
    said = capsys.readouterr().err
    assert (f"output_dir=s3://{BUCKET}/{folder}: outside of job.output=" in said) == warned


@pytest.fixture
def account(aws: Aws, bucket: Any, tmp_path: Path) -> Aws:
    """A bucket with eight photographs, a packed dataset's description, and a job's model."""
    photos = write_photo_folder(tmp_path / "photos", train=1, val=0)
    for path in photos.rglob("*.jpg"):
        bucket.upload_file(str(path), BUCKET, f"photos/{path.relative_to(photos).as_posix()}")
    (tmp_path / "run").mkdir()
    archive = tmp_path / "model.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(write_model(tmp_path / "run"), ".")
    bucket.upload_file(str(archive), BUCKET, MODEL.partition(f"{BUCKET}/")[2])
    bucket.put_object(Bucket=BUCKET, Key="packed/dataset.json", Body=b"{}")
    description = {
        "TrainingJobName": JOB,
        "TrainingJobStatus": "Completed",
        "RoleArn": ROLE,
        "AlgorithmSpecification": {"TrainingImage": aws.pretend_image()},
        "ResourceConfig": {"InstanceType": "ml.c7i.2xlarge", "InstanceCount": 1},
        "ModelArtifacts": {"S3ModelArtifacts": MODEL},
    }
    aws.answers["DescribeTrainingJob"] = [(200, description)]
    return aws


def run_host(
    number: int, request: dict[str, Any], s3: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Act as one host of the Processing job; returns what it would upload."""
    local = json.loads(json.dumps(request).replace(str(CONTAINER_ROOT), str(root)))
    names = [f"algo-{host + 1}" for host in range(HOSTS)]
    (root / "config").mkdir(parents=True)
    resources = {"current_host": names[number], "hosts": names}
    (root / "config/resourceconfig.json").write_text(json.dumps(resources))
    (root / "config/processingjobconfig.json").write_text(json.dumps(local))
    for entry in (each["S3Input"] for each in local["ProcessingInputs"]):
        prefix = entry["S3Uri"].partition(f"{BUCKET}/")[2]
        listed = s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix)["Contents"]
        sharded = entry["S3DataDistributionType"] == "ShardedByS3Key"
        share = listed[number::HOSTS] if sharded else listed
        folder = Path(entry["LocalPath"])
        for key in (item["Key"] for item in share):
            path = folder / (key.removeprefix(prefix) or Path(key).name)
            path.parent.mkdir(parents=True, exist_ok=True)
            s3.download_file(BUCKET, key, str(path))
    monkeypatch.setenv("ML_ROOT", str(root))
    arguments = local["AppSpecification"]["ContainerArguments"]
    assert image.main([*arguments, "pipeline=pillow", "pipeline.num_workers=0"]) == 0
    return root / "processing/output"


@pytest.mark.parametrize("source", ["folder", "table"])
def test_the_parts_of_two_hosts_are_one_table_without_a_merge(
    source: str, account: Aws, bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = bucket.list_objects_v2(Bucket=BUCKET, Prefix="photos/")["Contents"]
    names = [item["Key"].removeprefix("photos/") for item in listed]
    given = [JOB, *MINIMAL, f"target.instance_count={HOSTS}"]
    if source == "table":
        table = "\n".join(["id,path", *(f"{i},{name}" for i, name in enumerate(names))])
        bucket.put_object(Bucket=BUCKET, Key="lists/new.csv", Body=table.encode())
        given += [f"input=s3://{BUCKET}/lists/new.csv", f"images={INPUT}"]
    assert run(given) == 0
    (request,) = account.made("CreateProcessingJob")
    assert request["RoleArn"] == ROLE
    together = tmp_path / "together"
    for number in range(HOSTS):
        output = run_host(number, request, bucket, tmp_path / f"host-{number}", monkeypatch)
        shutil.copytree(output, together, dirs_exist_ok=True)
    assert len(list(together.iterdir())) == HOSTS
    found = rows(together)
    assert sorted(row["path"] for row in found) == sorted(names)
    assert all(len(row["scores"]) == 3 and row["error"] is None for row in found)


def test_each_host_gets_all_of_a_packed_dataset(account: Aws) -> None:
    assert run([JOB, *MINIMAL, f"input=s3://{BUCKET}/packed"]) == 0
    (request,) = account.made("CreateProcessingJob")
    source = request["ProcessingInputs"][0]["S3Input"]
    assert source["S3DataDistributionType"] == "FullyReplicated"


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ([f"output_dir=s3://{BUCKET}/packed"], f"output_dir=s3://{BUCKET}/packed: not empty"),
        ([f"input=s3://{BUCKET}/phot"], f"input=s3://{BUCKET}/phot/: S3 has no object there"),
        ([f"input=s3://{BUCKET}/packed/val"], f"input=s3://{BUCKET}/packed/val: is part of a"),
        ([f"input=s3://{BUCKET}/packed/test"], f"input=s3://{BUCKET}/packed/test: is part of a"),
    ],
)
def test_what_cannot_work_is_refused_before_the_job_is_created(
    overrides: list[str], line: str, account: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = error_lines(capsys, JOB, *MINIMAL, *overrides)
    assert found.startswith(line)
    assert not account.made("CreateProcessingJob")
