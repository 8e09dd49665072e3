"""A data set to S3: `python -m launch.upload source=FOLDER s3=s3://BUCKET/PREFIX`.

Files go up in parallel, large ones in parts. What S3 has already is left alone: an object of the
same size and the same CRC-32 is the same. Everything sent carries its CRC-32, which S3 checks on
arrival and keeps; so a second run compares all of the data set with what S3 holds, reading nothing
back. An object of other content stops the run before anything is sent, unless `overwrite=true`.
`DRY_RUN=1` says what would be sent.
"""

import base64
import sys
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from entry_point.config.compose import load_config
from launch.aws import session as aws
from launch.aws.local_files import LocalFile, list_files
from launch.request.launch_errors import LaunchError
from launch.request.upload_config import UploadConfig
from launch.sagemaker import is_dry_run, run_and_explain

PARALLEL = 16
PART_BYTES = 16 << 20
_CHECKSUM = {"ChecksumAlgorithm": "CRC32", "ChecksumType": "FULL_OBJECT"}


@dataclass(frozen=True)
class Plan:
    """What is to be sent: files that S3 lacks, and files of which it holds another content."""

    new: list[LocalFile]
    changed: list[LocalFile]
    unchanged: int

    @property
    def to_send(self) -> list[LocalFile]:
        return [*self.new, *self.changed]


def upload(source: Path, uri: str, *, overwrite: bool, dry_run: bool) -> Plan:
    """Make the objects below `uri` hold what the files of `source` hold.

    Objects that no file corresponds to stay. Raises LaunchError, before anything is sent, for a
    source without files and for objects of other content unless `overwrite`.
    """
    bucket, prefix = aws.split_s3(uri, "s3")
    prefix = f"{prefix.rstrip('/')}/".lstrip("/")
    files = list(list_files(source))
    if not files:
        raise LaunchError(f"source={source}: holds no files")
    s3 = aws.client(aws.open_session(None), "s3")
    with _progress() as progress:
        plan = _compare(files, s3, bucket, prefix, progress)
        if plan.changed and not overwrite:
            raise LaunchError(
                f"{len(plan.changed)} objects hold other content than the files here, the first is "
                f"s3://{bucket}/{prefix}{plan.changed[0].name}: nothing was sent; "
                "overwrite=true replaces them"
            )
        if not dry_run:
            _send(plan.to_send, s3, bucket, prefix, progress)
    return plan


def _compare(files: list[LocalFile], s3: Any, bucket: str, prefix: str, progress: Progress) -> Plan:
    sizes = _object_sizes(s3, bucket, prefix)
    known = [file for file in files if sizes.get(file.name) == file.bytes]
    task = progress.add_task("comparing", total=_bytes(known), visible=bool(known))

    def is_same(file: LocalFile) -> bool:
        found = s3.head_object(Bucket=bucket, Key=prefix + file.name, ChecksumMode="ENABLED")
        same = bool(found.get("ChecksumCRC32") == crc32(file.path))
        progress.advance(task, file.bytes)
        return same

    with ThreadPoolExecutor(PARALLEL) as pool:
        same = {
            file.name for file, is_it in zip(known, pool.map(is_same, known), strict=True) if is_it
        }
    return Plan(
        new=[file for file in files if file.name not in sizes],
        changed=[file for file in files if file.name in sizes and file.name not in same],
        unchanged=len(same),
    )


def _object_sizes(s3: Any, bucket: str, prefix: str) -> dict[str, int]:
    """Bytes of each object below the prefix, by the rest of its key."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return {
        item["Key"].removeprefix(prefix): item["Size"]
        for page in pages
        for item in page.get("Contents", [])
    }


def _send(
    files: Sequence[LocalFile], s3: Any, bucket: str, prefix: str, progress: Progress
) -> None:
    from boto3.s3.transfer import ProgressCallbackInvoker, TransferConfig, create_transfer_manager

    task = progress.add_task("uploading", total=_bytes(files), visible=bool(files))
    invoker = ProgressCallbackInvoker(lambda sent: progress.advance(task, sent))
    config = TransferConfig(
        max_concurrency=PARALLEL, multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES
    )
    # Leaving the manager by an exception, Ctrl-C too, ends all transfers and drops their parts.
    with create_transfer_manager(s3, config) as manager:
        futures = [
            manager.upload(str(file.path), bucket, prefix + file.name, _CHECKSUM, [invoker])
            for file in files
        ]
        for file, future in zip(files, futures, strict=True):
            future.result()
            file.require_unchanged()


def crc32(path: Path) -> str:
    """The file's CRC-32 as S3 spells it: four bytes, big end first, in base 64."""
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return base64.b64encode(value.to_bytes(4, "big")).decode()


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )


def _bytes(files: Sequence[LocalFile]) -> int:
    return sum(file.bytes for file in files)


def _summary(plan: Plan, uri: str, dry_run: bool) -> Iterator[str]:
    done = "would upload" if dry_run else "uploaded"
    yield (
        f"{done} {len(plan.to_send)} files, {_bytes(plan.to_send) / 1e6:,.1f} MB, to {uri}; "
        f"{plan.unchanged} were there already"
    )
    yield f"a job reads them as job.channels.training={uri.rstrip('/')}/"


def main(arguments: Sequence[str]) -> int:
    def command() -> int:
        config = load_config("upload", UploadConfig, arguments)
        plan = upload(
            Path(config.source),
            config.s3,
            overwrite=config.overwrite,
            dry_run=is_dry_run(),
        )
        for line in _summary(plan, config.s3, is_dry_run()):
            sys.stdout.write(f"{line}\n")
        return 0

    return run_and_explain(command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
