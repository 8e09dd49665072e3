"""Packing and predicting on SageMaker: the request, the parts of the hosts, what is refused."""

import json
import shlex
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from entry_point import __main__ as image
from entry_point.config.compose import load_config
from entry_point.config.predict_config import PredictConfig
from entry_point.data.sources.dataset_description import read_dataset
from entry_point.data.sources.table_folder import TABLE_SUFFIXES
from entry_point.job.run_folder import CONTAINER_ROOT
from launch.sagemaker import __main__ as sagemaker
from launch.sagemaker import jobs
from launch.sagemaker.processing import TABLES
from tests import commands
from tests.entry_point.prediction.predicted import rows
from tests.entry_point.serving.served_model import write_model
from tests.launch.conftest import (
    BUCKET,
    IMAGE,
    JOB,
    MINIMAL,
    MODEL,
    ROLE,
    Aws,
    Terminal,
    answer_job,
)
from tests.photographs import write_photo_folder

HOSTS = 2
PHOTOS, OUTPUT = f"s3://{BUCKET}/photos", f"s3://{BUCKET}/runs/new"
PACK = ("dataset", *MINIMAL, f"source={PHOTOS}/", f"output={OUTPUT}/", "job.name=pack")
PREDICT = ("predict", JOB, *MINIMAL, f"input={PHOTOS}/", f"output_dir={OUTPUT}/")
TWO = f"target.instance_count={HOSTS}"
PROCESSING = f"{CONTAINER_ROOT}/processing"


def test_the_launcher_knows_the_suffixes_of_tables() -> None:
    assert set(TABLES) == set(TABLE_SUFFIXES)


def inputs(request: dict[str, Any]) -> dict[str, tuple[str, str, str]]:
    """Where each input lies, where the container finds it, and how it is distributed."""
    names = ("S3Uri", "LocalPath", "S3DataDistributionType")
    given = {each["InputName"]: each["S3Input"] for each in request["ProcessingInputs"]}
    return {name: tuple(each[key] for key in names) for name, each in given.items()}


@pytest.mark.usefixtures("dry_run")
def test_each_host_packs_a_share_of_the_source(terminal: Terminal) -> None:
    more = (TWO, "quality=80", "job.network.EnableNetworkIsolation=true")
    request = json.loads(terminal.out(sagemaker.main, *PACK, *more))
    assert inputs(request) == {"input": (f"{PHOTOS}/", f"{PROCESSING}/input", "ShardedByS3Key")}
    (output,) = request["ProcessingOutputConfig"]["Outputs"]
    where = {"S3Uri": OUTPUT, "LocalPath": f"{PROCESSING}/output", "S3UploadMode": "EndOfJob"}
    assert output["S3Output"] == where
    assert request["AppSpecification"]["ContainerArguments"] == ["optimize", "quality=80"]
    assert request["ProcessingResources"]["ClusterConfig"]["InstanceCount"] == HOSTS
    assert request["NetworkConfig"] == {"EnableNetworkIsolation": True}


@pytest.mark.usefixtures("dry_run")
@pytest.mark.parametrize("model", [MODEL, JOB])
def test_each_host_predicts_a_share_of_the_images_with_the_whole_model(
    model: str, terminal: Terminal
) -> None:
    command, _, *rest = PREDICT
    request = json.loads(terminal.out(sagemaker.main, command, model, *rest, "output=features"))
    assert inputs(request) == {
        "input": (f"{PHOTOS}/", f"{PROCESSING}/input", "ShardedByS3Key"),
        "model": (MODEL, f"{PROCESSING}/model", "FullyReplicated"),
    }
    words = ["predict", "output=features", f"model_dir='{PROCESSING}/model/model.tar.gz'"]
    assert request["AppSpecification"]["ContainerArguments"] == words


@pytest.mark.usefixtures("dry_run")
def test_a_table_whose_name_has_a_quote_is_predicted(terminal: Terminal) -> None:
    given = (f'input="s3://{BUCKET}/Ann\'s ${{1}}, b.csv"', f"images={PHOTOS}")
    request = json.loads(terminal.out(sagemaker.main, *PREDICT, *given))
    command, *overrides = request["AppSpecification"]["ContainerArguments"]
    config = load_config(command, PredictConfig, overrides)
    assert config.input == f"{PROCESSING}/input/Ann's ${{1}}, b.csv"


CLUSTER = "job.request.ProcessingResources.ClusterConfig"
# The command, what is given, the beginning of the line, and what whoever follows it gives instead.
MISTAKES = [
    (PACK, "source=photos", "source=photos: must be s3://bucket/prefix", f"source={PHOTOS}"),
    (PACK, f"output={PHOTOS}/x", f"output={PHOTOS}/x: must not be inside source=", ""),
    (PACK, f"output={PHOTOS}", f"output={PHOTOS}: must not be inside source=", ""),
    (PACK, "output=s3:///packed", "output=s3:///packed: must be s3://bucket/prefix", ""),
    (PACK, "output_format=index", "output_format=index: must be shards in a job; drop it", ""),
    (PACK, "part=1/2", "part=1/2: set by the launcher; drop it", ""),
    (PACK, "target.spot=true", "target.spot: not available for Processing jobs; drop it", ""),
    (PACK, "job.code=true", "job.code: not available for Processing jobs; drop it", ""),
    (PACK, "resume_from=a", "resume_from: not available for Processing jobs; drop it", ""),
    (PACK, "job.request.RetryStrategy=a", 'Unknown parameter in input: "RetryStrategy"', ""),
    (PACK, "target.image=null", "target.image is missing; `make push`", f"target.image={IMAGE}"),
    (PACK, "target.image=pytorch", "target.image=pytorch: must be in a private ECR", ""),
    (PACK, "job.role=null", "job.role is missing; `make setup-aws`", f"job.role={ROLE}"),
    (PACK, "intervall=8", "intervall=8: no such key", ""),
    (PREDICT, "input=photos", "input=photos: must be s3://bucket/prefix", f"input={PHOTOS}"),
    (PREDICT, f"output_dir={PHOTOS}/x", f"output_dir={PHOTOS}/x: must not be inside input=", ""),
    (PREDICT, f"input={PHOTOS}/a.csv", f"input={PHOTOS}/a.csv: needs images=s3://bucket", ""),
    (PREDICT, f"images={PHOTOS}", f"images={PHOTOS}: only for a table; drop it", ""),
    (PREDICT, "part=1/2", "part=1/2: set by the launcher; drop it", ""),
    (PREDICT, "model_dir=runs/a", "model_dir=runs/a: set by the launcher; drop it", ""),
    (PACK, f"job.channels.a={PHOTOS}/", f"job.channels.a={PHOTOS}/: set by the launcher", ""),
    (PREDICT, "output=logits", "output=logits: ", "output=features"),
    (PREDICT, "s3://b/a=1/m.tar.gz", f"{JOB} s3://b/a=1/m.tar.gz: must be the name of one job", ""),
    (PREDICT, "other-job", f"{JOB} other-job: must be the name of one job", ""),
    (PREDICT, "job.request.ProcessingInputs=[]", "job.request.ProcessingInputs: set by the la", ""),
    (PREDICT, "job.environment.ML_ROOT=/tmp", "job.environment.ML_ROOT=/tmp: SageMaker", ""),
    (
        PREDICT,
        f"{CLUSTER}.InstanceType=g6.xlarge",
        f"{CLUSTER}.InstanceType=g6.xlarge: must be a type",
        f"{CLUSTER}.InstanceType=ml.g6.xlarge",
    ),
]


@pytest.mark.usefixtures("dry_run")
@pytest.mark.parametrize(
    ("command", "given", "line", "then"), MISTAKES, ids=lambda each: each[:60] if each else None
)
def test_a_mistake_is_one_line_that_names_its_key(
    command: tuple[str, ...], given: str, line: str, then: str, terminal: Terminal
) -> None:
    assert terminal.refusal(sagemaker.main, *command, given).startswith(line)
    if then:
        assert json.loads(terminal.out(sagemaker.main, *command, then))


@pytest.mark.usefixtures("dry_run")
@pytest.mark.parametrize("name", ["s3://b/model/", "s3://b/model"])
def test_a_model_that_is_no_archive_is_refused(name: str, terminal: Terminal) -> None:
    command, _, *rest = PREDICT
    line = terminal.refusal(sagemaker.main, command, name, *rest)
    assert line == f"{name}: must be a model.tar.gz, as a training job leaves it"


@pytest.mark.usefixtures("dry_run")
@pytest.mark.parametrize(("folder", "warned"), [("runs/answers", False), ("runs-2", True)])
def test_an_output_outside_of_job_output_is_named(
    folder: str, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sagemaker.main([*PREDICT, f"output_dir=s3://{BUCKET}/{folder}"]) == 0
    said = capsys.readouterr().err
    assert (f"output_dir=s3://{BUCKET}/{folder}: outside of s3://" in said) == warned


# With AWS


def put(s3: Any, *names: str) -> None:
    for name in names:
        s3.put_object(Bucket=BUCKET, Key=name, Body=b"x")


@pytest.fixture
def trained(aws: Aws) -> Aws:
    """An account with a completed training job."""
    answer_job(aws)
    return aws


@pytest.mark.parametrize(
    ("command", "given", "line"),
    [
        (
            PACK,
            f"output=s3://{BUCKET}/packed",
            f"output=s3://{BUCKET}/packed: not empty, the first",
        ),
        (PACK, f"source=s3://{BUCKET}/phot", f"source=s3://{BUCKET}/phot/: S3 has no object there"),
        (PREDICT, f"output_dir=s3://{BUCKET}/packed", f"output_dir=s3://{BUCKET}/packed: not empt"),
        (PREDICT, f"input=s3://{BUCKET}/phot", f"input=s3://{BUCKET}/phot/: S3 has no object ther"),
        (PREDICT, f"input=s3://{BUCKET}/packed/val", f"input=s3://{BUCKET}/packed/val: is part of"),
    ],
)
def test_what_cannot_work_is_refused_before_the_job_is_created(
    command: tuple[str, ...], given: str, line: str, trained: Aws, bucket: Any, terminal: Terminal
) -> None:
    put(bucket, "photos/train/a/1.jpg", "packed/dataset.json", "runs/the-job/output/model.tar.gz")
    lines = terminal.refusals(sagemaker.main, *command, given)
    assert lines[-1].startswith(line)
    assert not trained.made("CreateProcessingJob")


def test_tar_and_parquet_files_are_packed_by_one_host(bucket: Any, terminal: Terminal) -> None:
    put(bucket, "photos/train-0.tar", "photos/val-0.tar")
    line = terminal.refusal(sagemaker.main, *PACK, TWO)
    assert f"source={PHOTOS}: holds train-0.tar" in line and "target.instance_count=1" in line
    terminal.out(sagemaker.main, *PACK)


def test_a_launch_can_be_repeated_after_an_error_of_the_service(
    aws: Aws, bucket: Any, terminal: Terminal
) -> None:
    put(bucket, "photos/train/a/1.jpg", "photos/train/b/1.jpg", "photos/train/.hidden/x")
    aws.refuse("CreateProcessingJob", "ResourceLimitExceeded")
    assert "Service Quotas" in terminal.refusal(sagemaker.main, *PACK, TWO)
    del aws.answers["CreateProcessingJob"]
    out = terminal.out(sagemaker.main, *PACK, TWO)
    assert "job pack created: packs " in out
    assert f"data=shards data.access=stream job.channels.training={OUTPUT}/" in out


def test_what_trains_on_the_packed_images_is_told_as_it_is_typed(
    bucket: Any, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bucket, "photos/train/a/1.jpg")
    output = f"s3://{BUCKET}/runs/ours, packed"
    told = terminal.out(sagemaker.main, *PACK, f"output='{output}'")
    (line,) = (each for each in told.splitlines() if "job.channels.training" in each)
    monkeypatch.setenv("DRY_RUN", "1")
    request = json.loads(terminal.out(sagemaker.main, "train", *MINIMAL, *shlex.split(line)))
    (channel,) = request["InputDataConfig"]
    assert channel["DataSource"]["S3DataSource"]["S3Uri"] == f"{output}/"


def test_a_failed_job_shows_its_reason(
    aws: Aws,
    bucket: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put(bucket, "photos/train/a/1.jpg")
    monkeypatch.setattr(jobs, "_PAUSE_S", 0.0)
    cluster = {"InstanceCount": 2, "InstanceType": "ml.c7i.large"}
    description = {
        "ProcessingJobName": "pack",
        "ProcessingJobStatus": "Failed",
        "FailureReason": "AlgorithmError: no image could be read",
        "ProcessingResources": {"ClusterConfig": cluster},
        "ProcessingOutputConfig": {"Outputs": [{"S3Output": {"S3Uri": OUTPUT}}]},
    }
    aws.answers["DescribeProcessingJob"] = [(200, description)]
    assert sagemaker.main([*PACK, "--wait"]) == 1
    out = capsys.readouterr().out
    assert "pack: Failed" in out and "no image could be read" in out
    assert f"machines: 2 x ml.c7i.large\noutput: {OUTPUT}\n" in out


# The hosts


@pytest.fixture
def photos(tmp_path: Path, bucket: Any) -> list[str]:
    """The names of photographs of eight classes in S3."""
    folder = write_photo_folder(tmp_path / "photos", train=1, val=1)
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*.jpg")]
    for name in names:
        bucket.upload_file(str(folder / name), BUCKET, f"photos/{name}")
    return sorted(names)


def run_hosts(
    request: dict[str, Any], s3: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str
) -> Path:
    """Act as each host of a Processing job; returns the folder with what all of them upload."""
    for number in range(HOSTS):
        root = folder / f"host-{number}"
        local = json.loads(json.dumps(request).replace(str(CONTAINER_ROOT), str(root)))
        names = [f"algo-{host + 1}" for host in range(HOSTS)]
        (root / "config").mkdir(parents=True)
        resources = {"current_host": names[number], "hosts": names}
        (root / "config/resourceconfig.json").write_text(json.dumps(resources))
        (root / "config/processingjobconfig.json").write_text(json.dumps(local))
        for uri, target, distribution in inputs(local).values():
            prefix = uri.partition(f"{BUCKET}/")[2]
            listed = s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix)["Contents"]
            share = listed[number::HOSTS] if distribution == "ShardedByS3Key" else listed
            for key in (item["Key"] for item in share):
                path = Path(target) / (key.removeprefix(prefix) or Path(key).name)
                path.parent.mkdir(parents=True, exist_ok=True)
                s3.download_file(BUCKET, key, str(path))
        monkeypatch.setenv("ML_ROOT", str(root))
        assert image.main([*local["AppSpecification"]["ContainerArguments"], *more]) == 0
        shutil.copytree(root / "processing/output", folder / "all", dirs_exist_ok=True)
    return folder / "all"


def test_the_parts_of_two_hosts_are_one_dataset(
    aws: Aws,
    photos: list[str],
    bucket: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert sagemaker.main([*PACK, TWO, "quality=80", "shard_mb=0.2"]) == 0
    (request,) = aws.made("CreateProcessingJob")
    whole = run_hosts(request, bucket, tmp_path, monkeypatch)
    names = {path.relative_to(whole).as_posix() for path in whole.rglob("*.*")}
    assert {name for name in names if not name.endswith(".tar")} == {
        *(f"{name}-{number}-of-2.json" for name in ("dataset", "report") for number in (1, 2)),
        *(f"{split}/index-{n}-of-2.safetensors" for split in ("train", "val") for n in (1, 2)),
    }
    assert commands.check_dataset([f"root={whole}"]) == 0
    dataset = read_dataset(whole)
    assert dataset.samples("train") + dataset.samples("val") == len(photos)


@pytest.mark.parametrize("source", ["folder", "table"])
def test_the_parts_of_two_hosts_are_one_table_of_predictions(
    source: str,
    trained: Aws,
    photos: list[str],
    bucket: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "run").mkdir()
    with tarfile.open(tmp_path / "model.tar.gz", "w:gz") as tar:
        tar.add(write_model(tmp_path / "run"), ".")
    bucket.upload_file(str(tmp_path / "model.tar.gz"), BUCKET, MODEL.partition(f"{BUCKET}/")[2])
    given = ["predict", JOB, f"input={PHOTOS}", f"output_dir={OUTPUT}", TWO]
    if source == "table":
        table = "\n".join(["id,path", *(f"{i},{name}" for i, name in enumerate(photos))])
        bucket.put_object(Bucket=BUCKET, Key="lists/new.csv", Body=table.encode())
        given += [f"input=s3://{BUCKET}/lists/new.csv", f"images={PHOTOS}"]
    assert sagemaker.main(given) == 0
    (request,) = trained.made("CreateProcessingJob")
    assert request["RoleArn"] == ROLE and request["AppSpecification"]["ImageUri"] == IMAGE
    small = ("pipeline=pillow", "pipeline.num_workers=0")
    together = run_hosts(request, bucket, tmp_path, monkeypatch, *small)
    assert len(list(together.iterdir())) == HOSTS
    found = rows(together)
    assert sorted(row["path"] for row in found) == photos
    assert all(len(row["scores"]) == 3 and row["error"] is None for row in found)


def test_each_host_gets_all_of_a_packed_dataset(trained: Aws, bucket: Any) -> None:
    put(bucket, "packed/dataset.json", "runs/the-job/output/model.tar.gz")
    assert sagemaker.main([*PREDICT, f"input=s3://{BUCKET}/packed"]) == 0
    (request,) = trained.made("CreateProcessingJob")
    assert inputs(request)["input"][2] == "FullyReplicated"
