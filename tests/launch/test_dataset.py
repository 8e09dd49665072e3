"""Packing on SageMaker: the request, and the parts of the hosts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from entry_point import __main__ as image
from entry_point.data.sources.dataset_description import read_dataset
from entry_point.job.run_folder import CONTAINER_ROOT
from launch.sagemaker import __main__ as sagemaker
from launch.sagemaker import jobs
from tests import commands
from tests.launch.conftest import BUCKET, ROLE, Answer, Aws
from tests.launch.minimal_job import IMAGE
from tests.photographs import write_photo_folder

HOSTS = 2
PROCESSING = CONTAINER_ROOT / "processing"
SOURCE, OUTPUT = f"s3://{BUCKET}/photos", f"s3://{BUCKET}/packed"
MINIMAL = [f"source={SOURCE}/", f"output={OUTPUT}/", f"job.role={ROLE}"]
JOB = [*MINIMAL, f"target.instance_count={HOSTS}", "job.name=pack", "quality=80", "shard_mb=0.2"]


def run(arguments: Sequence[str]) -> int:
    return sagemaker.main(["dataset", *arguments])


def printed_request(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The request that a dry run prints."""
    assert run(arguments) == 0
    request = json.loads(capsys.readouterr().out)
    assert isinstance(request, dict)
    return request


def error_lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert run(arguments) == 1
    return capsys.readouterr().err.splitlines()


def test_each_host_gets_a_share_of_the_source(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRY_RUN", "1")
    request = printed_request(
        capsys, *JOB, f"target.image={IMAGE}", "job.network.EnableNetworkIsolation=true"
    )
    (source,) = (entry["S3Input"] for entry in request["ProcessingInputs"])
    assert source["S3Uri"] == f"{SOURCE}/"
    assert source["S3DataDistributionType"] == "ShardedByS3Key"
    assert source["LocalPath"] == f"{PROCESSING}/input"
    (output,) = request["ProcessingOutputConfig"]["Outputs"]
    assert output["S3Output"] == {
        "S3Uri": OUTPUT,
        "LocalPath": f"{PROCESSING}/output",
        "S3UploadMode": "EndOfJob",
    }
    assert request["AppSpecification"]["ContainerArguments"] == [
        "optimize",
        "quality=80",
        "shard_mb=0.2",
    ]
    assert request["ProcessingResources"]["ClusterConfig"]["InstanceCount"] == HOSTS
    assert request["NetworkConfig"] == {"EnableNetworkIsolation": True}


@pytest.mark.parametrize(
    ("overrides", "key", "reason"),
    [
        (["source=photos"], "source=photos", "s3://bucket/prefix"),
        ([f"output={SOURCE}/packed"], f"output={SOURCE}/packed", "must not be inside"),
        ([f"output={SOURCE}"], f"output={SOURCE}", "must not be inside"),
        (["resume_from=a"], "resume_from: ", "not available for Processing"),
        (["job.code=true"], "job.code: ", "not available for Processing"),
        (["job.request.RetryStrategy=a"], "Unknown parameter in input: ", "RetryStrategy"),
        (["target.volume_gb=0"], "target.volume_gb=0", "greater than or equal to 1"),
        (["target.image=pytorch"], "target.image=pytorch", "make push"),
        (["target.image=null"], "target.image is missing; ", "make push"),
        (["output_format=index"], "output_format=index", "must be shards"),
        (["quality=101"], "quality=101", "less than or equal to 100"),
        (["intervall=8"], "intervall=8", "no such key"),
    ],
)
def test_wrong_value_is_reported_by_its_config_key(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    overrides: list[str],
    key: str,
    reason: str,
) -> None:
    monkeypatch.setenv("DRY_RUN", "1")
    lines = error_lines(capsys, *MINIMAL, f"target.image={IMAGE}", *overrides)
    assert any(line.startswith(key) and reason in line for line in lines), lines


def put(s3: Any, *names: str) -> None:
    for name in names:
        s3.put_object(Bucket=BUCKET, Key=name, Body=b"x")


def test_an_output_with_objects_is_refused_before_anything_is_written(
    aws: Aws, bucket: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    put(bucket, "photos/train/a/1.jpg", "packed/dataset.json")
    (line,) = error_lines(capsys, *JOB, f"target.image={aws.pretend_image()}")
    assert f"output={OUTPUT}: not empty" in line
    assert not aws.made("CreateProcessingJob")


def test_tar_and_parquet_files_are_packed_by_one_host(
    aws: Aws, bucket: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    put(bucket, "photos/train-0.tar", "photos/val-0.tar")
    image = f"target.image={aws.pretend_image()}"
    (line,) = error_lines(capsys, *JOB, image)
    assert f"source={SOURCE}: holds train-0.tar" in line and "target.instance_count=1" in line
    assert not aws.made("CreateProcessingJob")
    assert run([*JOB, image, "target.instance_count=1"]) == 0


def test_launch_can_be_repeated_after_a_service_error(
    aws: Aws, bucket: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    put(bucket, "photos/train/a/1.jpg", "photos/train/b/1.jpg", "photos/train/.hidden/x")
    arguments = [*JOB, f"target.image={aws.pretend_image()}"]
    aws.refuse("CreateProcessingJob", "ResourceLimitExceeded")
    (line,) = error_lines(capsys, *arguments)
    assert "Service Quotas" in line
    del aws.answers["CreateProcessingJob"]
    assert run(arguments) == 0
    out = capsys.readouterr().out
    assert "job pack created: packs " in out
    assert f"data=shards data.access=stream job.channels.training={OUTPUT}/" in out


@pytest.fixture
def photos(tmp_path: Path, bucket: Any) -> Path:
    """Photos of eight classes, in a local folder and in S3."""
    folder = write_photo_folder(tmp_path / "photos", train=2, val=1)
    for path in folder.rglob("*.jpg"):
        bucket.upload_file(str(path), BUCKET, f"photos/{path.relative_to(folder).as_posix()}")
    return folder


def run_host(
    number: int, request: dict[str, Any], s3: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Act as one host of the Processing job: download its share, run the container, upload."""
    names = [f"algo-{host + 1}" for host in range(HOSTS)]
    contract = root / "config" / "resourceconfig.json"
    contract.parent.mkdir(parents=True)
    contract.write_text(json.dumps({"current_host": names[number], "hosts": names}))
    inputs = json.dumps(request).replace(str(CONTAINER_ROOT), str(root))
    (root / "config/processingjobconfig.json").write_text(inputs)
    listed = s3.list_objects_v2(Bucket=BUCKET, Prefix="photos/")["Contents"]
    for key in [item["Key"] for item in listed][number::HOSTS]:
        path = root / "processing/input" / key.removeprefix("photos/")
        path.parent.mkdir(parents=True, exist_ok=True)
        s3.download_file(BUCKET, key, str(path))
    monkeypatch.setenv("ML_ROOT", str(root))
    arguments = request["AppSpecification"]["ContainerArguments"]
    assert image.main([a.replace(str(CONTAINER_ROOT), str(root)) for a in arguments]) == 0
    output = root / "processing/output"
    for path in (path for path in output.rglob("*") if path.is_file()):
        s3.upload_file(str(path), BUCKET, f"packed/{path.relative_to(output).as_posix()}")


def keys(s3: Any, prefix: str) -> set[str]:
    listed = s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
    return {item["Key"].removeprefix(prefix) for item in listed}


def test_parts_of_two_hosts_are_a_valid_dataset(
    aws: Aws, photos: Path, bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run([*JOB, f"target.image={aws.pretend_image()}"]) == 0
    (request,) = aws.made("CreateProcessingJob")
    for number in range(HOSTS):
        run_host(number, request, bucket, tmp_path / f"host-{number}", monkeypatch)
    names = keys(bucket, "packed/")
    assert {name for name in names if not name.endswith(".tar")} == {
        *(f"{name}-{number}-of-2.json" for name in ("dataset", "report") for number in (1, 2)),
        *(f"{split}/index-{n}-of-2.safetensors" for split in ("train", "val") for n in (1, 2)),
    }
    whole = tmp_path / "whole"
    for name in names:
        (whole / name).parent.mkdir(parents=True, exist_ok=True)
        bucket.download_file(BUCKET, f"packed/{name}", str(whole / name))
    assert commands.check_dataset([f"root={whole}"]) == 0
    dataset = read_dataset(whole)
    packed = dataset.samples("train") + dataset.samples("val")
    assert packed == len([*photos.rglob("*.jpg")])


def ended(state: str) -> Answer:
    return 200, {
        "ProcessingJobName": "pack",
        "ProcessingJobStatus": state,
        "FailureReason": "AlgorithmError: no image could be read",
        "ProcessingResources": {
            "ClusterConfig": {"InstanceCount": 2, "InstanceType": "ml.c7i.large"}
        },
        "ProcessingOutputConfig": {"Outputs": [{"S3Output": {"S3Uri": OUTPUT}}]},
    }


def test_failed_job_shows_its_reason(
    aws: Aws,
    bucket: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put(bucket, "photos/train/a/1.jpg", "photos/train/b/1.jpg")
    monkeypatch.setattr(jobs, "_PAUSE_S", 0.0)
    aws.answers["DescribeProcessingJob"] = [ended("Failed")]
    assert run([*JOB, f"target.image={aws.pretend_image()}", "--wait"]) == 1
    out = capsys.readouterr().out
    assert "pack: Failed" in out and "no image could be read" in out
