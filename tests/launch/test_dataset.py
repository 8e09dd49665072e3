"""Packing on SageMaker: the request, the parts of the hosts, merging them."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from entry_point import check_dataset, container
from entry_point.contract.processing_job import ROOT
from launch.sagemaker import __main__ as sagemaker
from launch.sagemaker import jobs
from tests.launch.conftest import BUCKET, REGION, ROLE, Answer, Aws, refusal
from tests.launch.minimal_job import IMAGE
from tests.photographs import write_photo_folder

HOSTS = 2
PROCESSING = ROOT / "processing"
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


def test_each_host_gets_a_share_of_the_source_and_the_whole_class_list(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRY_RUN", "1")
    request = printed_request(capsys, *JOB, f"target.image={IMAGE}", "job.network_isolation=true")
    source, classes = (entry["S3Input"] for entry in request["ProcessingInputs"])
    assert source["S3Uri"] == f"{SOURCE}/"
    assert source["S3DataDistributionType"] == "ShardedByS3Key"
    assert source["LocalPath"] == f"{PROCESSING}/input"
    assert classes["S3Uri"] == f"{OUTPUT}/classes.txt"
    assert classes["S3DataDistributionType"] == "FullyReplicated"
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
        f"classes={classes['LocalPath']}/classes.txt",
    ]
    assert request["ProcessingResources"]["ClusterConfig"]["InstanceCount"] == HOSTS
    assert request["NetworkConfig"] == {"EnableNetworkIsolation": True}


@pytest.mark.parametrize(
    ("overrides", "key", "reason"),
    [
        (["source=photos"], "source=photos", "s3://bucket/prefix"),
        ([f"output={SOURCE}/packed"], f"output={SOURCE}/packed", "must not be inside"),
        ([f"output={SOURCE}"], f"output={SOURCE}", "must not be inside"),
        (["target.spot=true"], "target.spot: ", "not available for Processing"),
        (["target.keep_alive_s=60"], "target.keep_alive_s: ", "not available for Processing"),
        (["resume_from=a"], "resume_from: ", "not available for Processing"),
        (["job.code=true"], "job.code: ", "not available for Processing"),
        (["job.request.RoleArn=a"], "job.request: ", "not available for Processing"),
        (["target.volume_gb=0"], "Invalid value", "VolumeSizeInGB"),
        (["target.image=pytorch"], "target.image=pytorch", "make push"),
        (["classes=mine.txt"], "classes=mine.txt", "set by the launcher"),
        (["part=3"], "part=3", "set by the launcher"),
        (["output_format=folder"], "output_format=folder", "must be shards"),
        (["output_format='folder'"], "output_format='folder'", "must be shards"),
        (["output_format=index"], "output_format=index", "must be shards"),
        (["quality=101"], "quality=101", "at most 100"),
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


def test_each_missing_setting_is_reported_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRY_RUN", "1")
    (line,) = error_lines(capsys, *MINIMAL)
    assert line.startswith("target.image is missing; `make push`")


def put(s3: Any, *names: str) -> None:
    for name in names:
        s3.put_object(Bucket=BUCKET, Key=name, Body=b"x")


@pytest.mark.parametrize(
    ("objects", "reason"),
    [
        (["other/x"], "has no class folders"),
        (
            ["photos/train/a/1.jpg", "photos/val/b/1.jpg"],
            "train and val must have the same classes; only one of them has a, b",
        ),
        (["photos/train/a/1.jpg"], f"must be at most the number of objects in {SOURCE}, 1"),
        (
            ["photos/train/a/1.jpg", "photos/train/a/2.jpg", "packed/dataset.json"],
            f"output={OUTPUT}: not empty",
        ),
    ],
)
def test_unusable_source_or_output_is_refused_before_anything_is_written(
    aws: Aws, bucket: Any, capsys: pytest.CaptureFixture[str], objects: list[str], reason: str
) -> None:
    put(bucket, *objects)
    (line,) = error_lines(capsys, *JOB, f"target.image={aws.pretend_image()}")
    assert reason in line
    assert not aws.made("CreateProcessingJob")
    assert len(bucket.list_objects_v2(Bucket=BUCKET)["Contents"]) == len(objects)


def test_launch_can_be_repeated_after_a_service_error(
    aws: Aws, bucket: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    put(bucket, "photos/train/a/1.jpg", "photos/train/b/1.jpg", "photos/train/.hidden/x")
    arguments = [*JOB, f"target.image={aws.pretend_image()}", "--no-wait"]
    aws.refuse("CreateProcessingJob", "ResourceLimitExceeded")
    (line,) = error_lines(capsys, *arguments)
    assert "Service Quotas" in line
    del aws.answers["CreateProcessingJob"]
    assert run(arguments) == 0
    out = capsys.readouterr().out
    assert "job pack created: packs 2 classes" in out and "--merge pack" in out
    classes = bucket.get_object(Bucket=BUCKET, Key="packed/classes.txt")["Body"].read()
    assert classes == b"a\nb\n"


def test_a_source_without_splits_is_packed_by_its_class_folders(
    aws: Aws, bucket: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    put(bucket, "photos/a/1.jpg", "photos/b/1.jpg")
    assert run([*JOB, f"target.image={aws.pretend_image()}", "--no-wait"]) == 0
    assert "packs 2 classes" in capsys.readouterr().out


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
    listed = s3.list_objects_v2(Bucket=BUCKET, Prefix="photos/")["Contents"]
    for key in [item["Key"] for item in listed][number::HOSTS]:
        path = root / "processing/input" / key.removeprefix("photos/")
        path.parent.mkdir(parents=True, exist_ok=True)
        s3.download_file(BUCKET, key, str(path))
    classes = root / "processing/classes/classes.txt"
    classes.parent.mkdir()
    s3.download_file(BUCKET, "packed/classes.txt", str(classes))
    monkeypatch.setenv("ML_ROOT", str(root))
    arguments = request["AppSpecification"]["ContainerArguments"]
    assert container.main([a.replace(str(ROOT), str(root)) for a in arguments]) == 0
    output = root / "processing/output"
    for path in (path for path in output.rglob("*") if path.is_file()):
        s3.upload_file(str(path), BUCKET, f"packed/{path.relative_to(output).as_posix()}")


def keys(s3: Any, prefix: str) -> set[str]:
    listed = s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
    return {item["Key"].removeprefix(prefix) for item in listed}


@pytest.fixture
def packed(
    aws: Aws, photos: Path, bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> set[str]:
    """A completed packing job, not yet merged; returns the file names of the source."""
    arguments = [*JOB, f"target.image={aws.pretend_image()}", "--no-wait"]
    assert run(arguments) == 0
    (request,) = aws.made("CreateProcessingJob")
    for number in range(HOSTS):
        run_host(number, request, bucket, tmp_path / f"host-{number}", monkeypatch)
    described = {**request, "ProcessingJobStatus": "Completed"}
    aws.answers["DescribeProcessingJob"] = [(200, described)]
    return {path.relative_to(photos).as_posix() for path in photos.rglob("*.jpg")}


def test_parts_of_two_hosts_merge_into_a_valid_dataset_without_downloading_shards(
    aws: Aws, bucket: Any, packed: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.calls.clear()
    assert run(["--merge", "pack"]) == 0
    assert f"the dataset is in {OUTPUT}" in capsys.readouterr().out
    assert not [call for call in aws.calls if call.operation.endswith(".tar")]
    names = keys(bucket, "packed/")
    assert {name for name in names if not name.endswith(".tar")} == {
        "dataset.json",
        "report.json",
        "train/index.jix",
        "train/index.parquet",
        "val/index.jix",
        "val/index.parquet",
    }
    whole = tmp_path / "whole"
    for name in names:
        (whole / name).parent.mkdir(parents=True, exist_ok=True)
        bucket.download_file(BUCKET, f"packed/{name}", str(whole / name))
    assert check_dataset.main([f"root={whole}"]) == 0
    description = json.loads((whole / "dataset.json").read_text())
    samples = sum(
        shard["samples"] for split in description["splits"].values() for shard in split["shards"]
    )
    assert samples == len(packed)
    aws.calls.clear()
    assert run(["--merge", "pack"]) == 0
    assert keys(bucket, "packed/") == names


def test_missing_part_or_shard_is_named_and_nothing_is_deleted(
    aws: Aws, bucket: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.answers["DescribeProcessingJob"] = [ended("Completed")]
    for part in ("00", "01"):
        shard = {"file": f"shard-{part}-000000.tar", "bytes": 1, "samples": 1}
        described = json.dumps({"splits": {"train": {"shards": [shard]}}})
        bucket.put_object(Bucket=BUCKET, Key=f"packed/part-{part}/dataset.json", Body=described)
        put(bucket, f"packed/part-{part}/report.json", f"packed/train/{shard['file']}")
    everything = keys(bucket, "packed/")
    for lost, reason in {
        "train/shard-01-000000.tar": "has no bytes, must have 1 (part-01/dataset.json)",
        "part-00/dataset.json": "part-00 has no dataset.json",
        "part-00/report.json": "has 1 of 2 parts",
    }.items():
        bucket.delete_object(Bucket=BUCKET, Key=f"packed/{lost}")
        (line,) = error_lines(capsys, "--merge", "pack")
        assert reason in line
        everything.remove(lost)
        assert keys(bucket, "packed/") == everything


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


def test_failed_job_shows_its_reason_and_is_not_merged(
    aws: Aws,
    bucket: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put(bucket, "photos/train/a/1.jpg", "photos/train/b/1.jpg")
    monkeypatch.setattr(jobs, "follow", partial(jobs.follow, interval_s=0.0))
    aws.answers["DescribeProcessingJob"] = [ended("Failed")]
    assert run([*JOB, f"target.image={aws.pretend_image()}"]) == 1
    out = capsys.readouterr().out
    assert "pack: Failed" in out and "no image could be read" in out
    (line,) = error_lines(capsys, "--merge", "pack")
    assert line == "pack: is Failed; must be Completed to merge"


def test_merge_without_a_job_or_of_an_unknown_job_is_one_line(
    aws: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no job given" in error_lines(capsys, "--merge")[0]
    aws.answers["DescribeProcessingJob"] = [refusal("ValidationException", "Could not find job")]
    (line,) = error_lines(capsys, "--merge", "nothing")
    assert line.startswith(f"nothing: no such job in {REGION}; ")


def test_merge_of_a_training_job_names_its_kind(
    aws: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.answers["DescribeTrainingJob"] = [(200, {"TrainingJobStatus": "Completed"})]
    (line,) = error_lines(capsys, "--merge", "trained")
    assert line == "trained: is a Training job; --merge needs the packing job that wrote the parts"
