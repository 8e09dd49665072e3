"""Uploading a folder is `aws s3 sync` without hidden files, and the next command."""

import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from entry_point.job.program import ExitCode
from launch import upload
from tests.launch.conftest import BUCKET, Aws

PREFIX = f"s3://{BUCKET}/data"
NAMES = ["train/a b/größe +&.jpg", "train/empty", "val/large.tar", "val/link"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Small files, a large one, an empty one, a link, unusual names, and hidden files."""
    source = tmp_path / ".cache" / "photos"
    (source / "train" / "a b").mkdir(parents=True)
    (source / "train" / "a b" / "größe +&.jpg").write_bytes(b"one")
    (source / "train" / "empty").write_bytes(b"")
    (source / "val").mkdir()
    (source / "val" / "large.tar").write_bytes(os.urandom(12_000_000))
    (source / "val" / "link").symlink_to(source / "train" / "empty")
    (source / ".DS_Store").write_bytes(b"hidden")
    for place in (source / ".unfinished", source / "train" / "a b" / ".thumbnails"):
        place.mkdir()
        (place / "x").write_bytes(b"hidden")
    for name in NAMES:  # S3 has whole seconds: a file of this second looks newer than its copy
        os.utime(source / name, (0, 1_700_000_000))
    return source


def stored(s3: Any) -> dict[str, bytes]:
    keys = [item["Key"] for item in s3.list_objects_v2(Bucket=BUCKET).get("Contents", [])]
    return {key: s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys}


def test_all_files_but_hidden_ones_arrive_and_the_next_command_is_said(
    aws_cli: Aws, bucket: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.put_object(Bucket=BUCKET, Key="data/other", Body=b"other")
    assert upload.main([str(folder), PREFIX]) == 0
    files = {f"data/{name}": (folder / name).read_bytes() for name in NAMES}
    assert stored(bucket) == {**files, "data/other": b"other"}
    said = f'make sagemaker-train ARGS="job.channels.training={PREFIX}/ ..."'
    assert said in capsys.readouterr().out
    aws_cli.calls.clear()
    assert upload.main([str(folder), PREFIX]) == 0  # sends nothing
    assert not [call for call in aws_cli.calls if call.operation.startswith("PUT ")]


@pytest.mark.usefixtures("aws_cli")
def test_options_of_the_sync_are_passed_on_and_filters_decide(bucket: Any, folder: Path) -> None:
    bucket.put_object(Bucket=BUCKET, Key="data/other", Body=b"other")
    options = ["--delete", "--exclude", "*.tar", "--include", ".DS_Store"]
    assert upload.main([str(folder), PREFIX, *options]) == 0
    names = {".DS_Store", *NAMES} - {"val/large.tar"}
    assert {*stored(bucket)} == {f"data/{name}" for name in names}


def test_a_dry_run_prints_the_command(
    aws: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DRY_RUN", "1")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert upload.main(["my photos", PREFIX]) == 0
    command = shlex.split(capsys.readouterr().out)
    assert command == ["aws", "s3", "sync", "my photos", PREFIX, "--exclude=.*", "--exclude=*/.*"]
    assert not aws.calls


@pytest.mark.parametrize("arguments", [["nowhere", PREFIX], [".", "s3://no-such-bucket/x"]])
@pytest.mark.usefixtures("aws_cli")
def test_what_aws_refuses_is_an_exit_code_beside_its_own_words(
    arguments: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    assert upload.main(arguments) != 0
    told = capfd.readouterr()
    assert told.err.strip() and "sagemaker-train" not in told.out


@pytest.mark.parametrize("arguments", [[], ["photos"], [".", "bucket/x"], [PREFIX, "photos"]])
def test_anything_but_a_folder_and_a_prefix_is_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert upload.main(arguments) == ExitCode.USAGE
    line = capsys.readouterr().err
    assert "must be FOLDER s3://" in line and line.count("\n") == 1
