"""`make upload` is `aws s3 sync` without hidden files, and the next command."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launch.conftest import BUCKET, Aws

ROOT = Path(__file__).resolve().parents[2]
PREFIX = f"s3://{BUCKET}/data"
NAMES = ["train/a b/größe +&.jpg", "train/empty", "val/all.tar", "val/link"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty file, a link, unusual names, and hidden files, in a hidden folder."""
    source = tmp_path / ".cache" / "photos"
    for name in (*NAMES[:-1], ".DS_Store", ".unfinished/x", "train/a b/.thumbnails/x"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("" if name.endswith("empty") else name)
    (source / NAMES[-1]).symlink_to(source / "train" / "empty")
    for name in NAMES:  # S3 has whole seconds: a file of this second looks newer than its copy
        os.utime(source / name, (0, 1_700_000_000))
    return source


def stored(s3: Any) -> dict[str, bytes]:
    keys = [item["Key"] for item in s3.list_objects_v2(Bucket=BUCKET).get("Contents", [])]
    return {key: s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys}


def upload(*words: str) -> tuple[int, str]:
    """Exit code and output of `make upload`."""
    command = ["make", f"PYTHON={sys.executable}", "upload"]
    done = subprocess.run(
        [*command, f"ARGS={shlex.join(words)}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def test_all_files_but_hidden_ones_arrive_and_the_next_command_is_said(
    aws_cli: Aws, bucket: Any, folder: Path
) -> None:
    bucket.put_object(Bucket=BUCKET, Key="data/other", Body=b"other")
    code, said = upload(str(folder), f"{PREFIX}/")
    assert code == 0, said
    files = {f"data/{name}": (folder / name).read_bytes() for name in NAMES}
    assert stored(bucket) == {**files, "data/other": b"other"}
    assert said.endswith(
        f'next: make sagemaker-train ARGS="job.channels.training={PREFIX}/ ..." trains on it\n'
    )
    aws_cli.calls.clear()
    assert upload(str(folder), PREFIX)[0] == 0  # sends nothing
    assert not [call for call in aws_cli.calls if call.operation.startswith("PUT ")]


@pytest.mark.usefixtures("aws_cli")
def test_the_next_command_names_a_prefix_with_blanks_as_it_is_typed(folder: Path) -> None:
    code, said = upload(str(folder), f"s3://{BUCKET}/my photos")
    assert code == 0 and f'job.channels.training=s3://{BUCKET}/my\\ photos/ ..."' in said
    code, said = upload(str(folder), f"s3://{BUCKET}/a, b")
    typed = said.partition('ARGS="')[2].partition(" ...")[0]
    assert shlex.split(typed) == [f"job.channels.training='s3://{BUCKET}/a, b/'"]


@pytest.mark.usefixtures("aws_cli")
def test_options_of_the_sync_are_passed_on_and_filters_decide(bucket: Any, folder: Path) -> None:
    bucket.put_object(Bucket=BUCKET, Key="data/other", Body=b"other")
    options = ["--delete", "--exclude", "*.tar", "--include", ".DS_Store"]
    assert upload(str(folder), PREFIX, *options)[0] == 0
    names = {".DS_Store", *NAMES} - {"val/all.tar"}
    assert {*stored(bucket)} == {f"data/{name}" for name in names}


@pytest.mark.usefixtures("aws_cli")
def test_what_aws_refuses_is_an_exit_code_beside_its_own_words() -> None:
    code, said = upload("nowhere", PREFIX)
    assert code and said.strip() and "sagemaker-train" not in said


def test_a_dry_run_prints_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRY_RUN", "1")
    code, said = upload("my photos", PREFIX)
    expected = ["aws", "s3", "sync", "--exclude=.*", "--exclude=*/.*", "my photos", PREFIX]
    assert code == 0 and shlex.split(said) == expected


def test_without_the_aws_cli_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "make").symlink_to(shutil.which("make") or "")
    monkeypatch.setenv("PATH", str(tmp_path))
    code, said = upload("photos", PREFIX)
    assert code and said.startswith("upload: no command aws: install the AWS CLI\n")
