"""Uploading a folder: complete, once, verified, never over different content unasked."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from launch import upload
from launch.aws.s3.s3_upload import PART_BYTES, UploadPlan, crc32, plan_upload
from tests.launch.conftest import BUCKET, DROPPED, ROOT, Aws

PREFIX = f"s3://{BUCKET}/data"
BAD_DIGEST = "<Error><Code>BadDigest</Code><Message>The CRC32 did not match</Message></Error>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Small files, a large one, an empty one, a link, unusual names, and hidden files."""
    source = tmp_path / "photos"
    (source / "train" / "a b").mkdir(parents=True)
    (source / "train" / "a b" / "größe +&.jpg").write_bytes(b"one")
    (source / "train" / "empty").write_bytes(b"")
    (source / "val").mkdir()
    (source / "val" / "large.tar").write_bytes(os.urandom(PART_BYTES + 5_000_000))
    (source / "val" / "link").symlink_to(source / "train" / "empty")
    (source / ".DS_Store").write_bytes(b"hidden")
    (source / ".unfinished").mkdir()
    (source / ".unfinished" / "x").write_bytes(b"hidden")
    return source


NAMES = ["train/a b/größe +&.jpg", "train/empty", "val/large.tar", "val/link"]


def run(source: Path, *more: str) -> int:
    return upload.main([f"source='{source}'", f"s3={PREFIX}", *more])


def sent(aws: Aws) -> list[str]:
    """The uploaded objects, without repeats."""
    calls = {call.operation for call in aws.calls}
    return sorted(call for call in calls if call.startswith("PUT "))


def stored(s3: Any) -> dict[str, bytes]:
    listed = s3.list_objects_v2(Bucket=BUCKET).get("Contents", [])
    keys = [item["Key"] for item in listed]
    return {key: s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys}


def test_all_files_arrive_with_their_checksums(
    bucket: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder) == 0
    assert stored(bucket) == {f"data/{name}": (folder / name).read_bytes() for name in NAMES}
    for name in NAMES:
        found = bucket.head_object(Bucket=BUCKET, Key=f"data/{name}", ChecksumMode="ENABLED")
        assert found["ChecksumCRC32"] == crc32(folder / name)
    out = capsys.readouterr().out
    assert "uploaded 4 files" in out
    assert f"job.channels.training={PREFIX}/" in out


def test_large_file_is_uploaded_in_parts(aws: Aws, bucket: Any, folder: Path) -> None:
    assert run(folder) == 0
    parts = [c for c in aws.calls if c.operation == f"PUT /{BUCKET}/data/val/large.tar"]
    assert len(parts) == 2
    assert bucket.head_object(Bucket=BUCKET, Key="data/val/large.tar")["ETag"].endswith('-2"')


@pytest.mark.usefixtures("bucket")
def test_second_upload_sends_nothing_and_third_only_new_files(
    aws: Aws, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder) == 0
    aws.calls.clear()
    assert run(folder) == 0
    assert sent(aws) == []
    assert "uploaded 0 files, 0.0 MB" in capsys.readouterr().out
    (folder / "val" / "new").write_bytes(b"new")
    os.utime(folder / "train" / "empty")
    assert run(folder) == 0
    assert sent(aws) == [f"PUT /{BUCKET}/data/val/new"]


@pytest.mark.parametrize("content", [b"two", b"longer"])
def test_different_content_is_replaced_only_with_overwrite(
    aws: Aws, bucket: Any, folder: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.put_object(Bucket=BUCKET, Key=f"data/{NAMES[0]}", Body=content)
    aws.calls.clear()
    assert run(folder) == 1
    err = capsys.readouterr().err.splitlines()[-1]
    assert f"1 objects differ from the local files, the first is {PREFIX}/{NAMES[0]}" in err
    assert "overwrite=true" in err
    assert sent(aws) == []
    assert run(folder, "overwrite=true") == 0
    assert stored(bucket)[f"data/{NAMES[0]}"] == b"one"


def test_object_without_a_crc32_counts_as_different(bucket: Any, folder: Path) -> None:
    bucket.put_object(
        Bucket=BUCKET, Key=f"data/{NAMES[0]}", Body=b"one", ChecksumAlgorithm="SHA256"
    )
    assert run(folder) == 1


def test_objects_without_a_local_file_are_left_unchanged(bucket: Any, folder: Path) -> None:
    for key in ("data/other", "database"):
        bucket.put_object(Bucket=BUCKET, Key=key, Body=b"other")
    assert run(folder) == 0
    assert stored(bucket)["data/other"] == stored(bucket)["database"] == b"other"


def test_dry_run_prints_the_plan_and_sends_nothing(
    aws: Aws,
    bucket: Any,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DRY_RUN", "1")
    assert run(folder) == 0
    assert "would upload 4 files" in capsys.readouterr().out
    assert stored(bucket) == {} and sent(aws) == []


def test_dropped_connections_are_retried(aws: Aws, bucket: Any, folder: Path) -> None:
    aws.answers[f"PUT /{BUCKET}/data/val/large.tar"] = [DROPPED, None, DROPPED, None]
    assert run(folder) == 0
    assert stored(bucket)["data/val/large.tar"] == (folder / "val" / "large.tar").read_bytes()


def test_content_damaged_in_transit_is_rejected_by_s3_and_reported(
    aws: Aws, bucket: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.answers[f"PUT /{BUCKET}/data/train/empty"] = [(400, BAD_DIGEST)]
    assert run(folder) == 1
    assert "damaged in transit: run the same command again" in capsys.readouterr().err
    aws.answers.clear()
    assert run(folder) == 0
    assert len(stored(bucket)) == len(NAMES)


def test_failed_large_file_leaves_no_parts(aws: Aws, bucket: Any, folder: Path) -> None:
    aws.answers[f"PUT /{BUCKET}/data/val/large.tar"] = [None, (400, BAD_DIGEST)]
    assert run(folder) == 1
    assert "Uploads" not in bucket.list_multipart_uploads(Bucket=BUCKET)


def test_killed_upload_is_completed_by_the_next_one(aws: Aws, bucket: Any, tmp_path: Path) -> None:
    source = tmp_path / "many"
    source.mkdir()
    for number in range(60):
        (source / f"{number:03d}").write_bytes(os.urandom(1000))
    process = subprocess.Popen(
        [sys.executable, "-m", "launch.upload", f"source={source}", f"s3={PREFIX}"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **aws.environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while len(sent(aws)) < 3 and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = stored(bucket)
    aws.calls.clear()
    assert upload.main([f"source={source}", f"s3={PREFIX}"]) == 0
    assert stored(bucket) == {f"data/{path.name}": path.read_bytes() for path in source.iterdir()}
    assert len(sent(aws)) == 60 - len(before)


@pytest.mark.usefixtures("bucket")
def test_file_that_changes_during_the_upload_is_named(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def write_afterwards(*arguments: Any) -> UploadPlan:
        plan = plan_upload(*arguments)
        (folder / "train" / "empty").write_bytes(b"no more")
        return plan

    monkeypatch.setattr(upload, "plan_upload", write_afterwards)
    assert run(folder) == 1
    assert "train/empty: changed during the upload" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["source=nowhere", f"s3={PREFIX}"], "source=nowhere: no such folder"),
        ([f"s3={PREFIX}"], "source: has no value"),
        (["source=."], "s3: has no value"),
        (["source=.", "s3=bucket/x"], "s3=bucket/x: must be s3://bucket/prefix"),
        (["sorce=.", f"s3={PREFIX}"], "sorce=.: no such key; the top level has source, s3, overwr"),
        (["source=.", f"s3={PREFIX}", "overwrite=perhaps"], "overwrite"),
        (["source=empty", f"s3={PREFIX}"], "source=empty: contains no files"),
        (["source=full", "s3=s3://no-such-bucket/x"], "make setup-aws"),
        (["source=odd", f"s3={PREFIX}"], "must be UTF-8"),
        (["source=pipe", f"s3={PREFIX}"], "pipe/fifo: not a regular file"),
        (["source=broken", f"s3={PREFIX}"], "broken/link: cannot be read"),
    ],
)
@pytest.mark.usefixtures("bucket")
def test_what_cannot_be_uploaded_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "full", "odd", "pipe", "broken"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "file").write_text("x")
    Path(os.fsdecode(os.fsencode(tmp_path / "odd") + b"/\xff")).write_text("x")
    os.mkfifo(tmp_path / "pipe" / "fifo")
    (tmp_path / "broken" / "link").symlink_to("nothing")
    if "s3://no-such-bucket/x" not in arguments[-1]:
        # These errors are found before AWS is called.
        monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert upload.main(arguments) == 1
    err = capsys.readouterr().err
    assert reason in err and err.count("\n") == 1
