"""Uploading a folder: complete, once, verified; nothing is ever deleted."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from launch import upload
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
    (source / "val" / "large.tar").write_bytes(os.urandom(12_000_000))
    (source / "val" / "link").symlink_to(source / "train" / "empty")
    (source / ".DS_Store").write_bytes(b"hidden")
    (source / ".unfinished").mkdir()
    (source / ".unfinished" / "x").write_bytes(b"hidden")
    return source


NAMES = ["train/a b/größe +&.jpg", "train/empty", "val/large.tar", "val/link"]


def run(source: Path, *more: str) -> int:
    return upload.main([str(source), PREFIX, *more])


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
        assert any(member.startswith("ChecksumCRC") for member in found)
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
    assert run(folder) == 0
    assert sent(aws) == [f"PUT /{BUCKET}/data/val/new"]


@pytest.mark.parametrize(("content", "age_s"), [(b"longer", -3600), (b"two", 3600)])
def test_a_file_of_another_size_or_newer_than_its_object_is_sent_again(
    aws: Aws, bucket: Any, folder: Path, content: bytes, age_s: int
) -> None:
    assert run(folder) == 0
    file, now = folder / NAMES[0], time.time()
    file.write_bytes(content)
    os.utime(file, (now + age_s, now + age_s))
    aws.calls.clear()
    assert run(folder) == 0
    assert len(sent(aws)) == 1
    assert stored(bucket)[f"data/{NAMES[0]}"] == content


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
        [sys.executable, "-m", "launch.upload", str(source), PREFIX],
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
    assert upload.main([str(source), PREFIX]) == 0
    assert stored(bucket) == {f"data/{path.name}": path.read_bytes() for path in source.iterdir()}
    assert len(sent(aws)) == 60 - len(before)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nowhere", PREFIX], "nowhere: no such folder"),
        ([".", "bucket/x"], "s3=bucket/x: must be s3://bucket/prefix"),
        (["empty", PREFIX], "empty: contains no files"),
        (["full", "s3://no-such-bucket/x"], "make setup-aws"),
        (["broken", PREFIX], "broken/link: No such file"),
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
    for name in ("empty", "full", "broken"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "file").write_text("x")
    (tmp_path / "broken" / "link").symlink_to("nothing")
    if "s3://no-such-bucket/x" not in arguments[-1]:
        # These errors are found before AWS is called.
        monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert upload.main(arguments) == 1
    err = capsys.readouterr().err
    assert reason in err and err.count("\n") == 1
