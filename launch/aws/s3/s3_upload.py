"""Uploading a folder: list the files, compare them with S3, send the rest.

An object with the size and the CRC-32 of a file equals it and is not sent again. Every upload
carries its CRC-32, which S3 verifies and keeps, so a comparison reads nothing back.
"""

import base64
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from rich.progress import Progress

from launch.aws.s3.s3_bucket import object_sizes
from launch.command_line import LaunchError

PARALLEL = 16
PART_BYTES = 16 << 20
_CHECKSUM = {"ChecksumAlgorithm": "CRC32", "ChecksumType": "FULL_OBJECT"}


class LocalFile(NamedTuple):
    """A file, with its size and modification time when it was listed."""

    path: Path
    name: str
    """Relative to the folder, with `/` as separator."""
    bytes: int
    modified_ns: int

    def require_unchanged(self) -> None:
        """Raise LaunchError if the file has changed since it was listed."""
        now = self.path.stat()
        if (now.st_size, now.st_mtime_ns) != (self.bytes, self.modified_ns):
            raise LaunchError(
                f"{self.path}: changed during the upload; run the same command again when nothing "
                "writes to it"
            )


@dataclass(frozen=True)
class UploadPlan:
    """Files that S3 lacks, files that differ from their object, and how many are equal."""

    new: list[LocalFile]
    changed: list[LocalFile]
    unchanged: int

    @property
    def to_send(self) -> list[LocalFile]:
        return [*self.new, *self.changed]


def list_files(folder: Path) -> Iterator[LocalFile]:
    """All files below the folder by name; follows links, skips hidden files and folders.

    Raises LaunchError for a file that cannot be read or whose name cannot be an S3 key.
    """
    if not folder.is_dir():
        raise LaunchError(f"source={folder}: no such folder")
    for parent, folders, files in os.walk(folder, followlinks=True, onerror=_raise_unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith("."):
                yield _local_file(Path(parent) / name, folder)


def _local_file(path: Path, folder: Path) -> LocalFile:
    name = path.relative_to(folder).as_posix()
    try:
        name.encode()
        found = path.stat()
    except UnicodeEncodeError as error:
        raise LaunchError(f"{name!r}: an S3 key must be UTF-8; rename the file") from error
    except OSError as error:
        _raise_unreadable(error)
    if not stat.S_ISREG(found.st_mode):
        raise LaunchError(f"{path}: not a regular file; remove it")
    return LocalFile(path, name, found.st_size, found.st_mtime_ns)


def _raise_unreadable(error: OSError) -> NoReturn:
    raise LaunchError(f"{error.filename}: cannot be read: {error.strerror}") from error


def plan_upload(
    files: Sequence[LocalFile], s3: Any, bucket: str, prefix: str, progress: Progress
) -> UploadPlan:
    """Compare the files with the objects below the prefix."""
    sizes = object_sizes(s3, bucket, prefix)
    known = [file for file in files if sizes.get(file.name) == file.bytes]
    task = progress.add_task("comparing", total=total_bytes(known), visible=bool(known))

    def is_equal(file: LocalFile) -> bool:
        found = s3.head_object(Bucket=bucket, Key=prefix + file.name, ChecksumMode="ENABLED")
        equal = bool(found.get("ChecksumCRC32") == crc32(file.path))
        progress.advance(task, file.bytes)
        return equal

    with ThreadPoolExecutor(PARALLEL) as pool:
        results = zip(known, pool.map(is_equal, known), strict=True)
        equal = {file.name for file, is_it in results if is_it}
    return UploadPlan(
        new=[file for file in files if file.name not in sizes],
        changed=[file for file in files if file.name in sizes and file.name not in equal],
        unchanged=len(equal),
    )


def send_files(
    files: Sequence[LocalFile], s3: Any, bucket: str, prefix: str, progress: Progress
) -> None:
    """Upload the files in parallel, large ones in parts; raises LaunchError if one changes."""
    from boto3.s3.transfer import ProgressCallbackInvoker, TransferConfig, create_transfer_manager

    task = progress.add_task("uploading", total=total_bytes(files), visible=bool(files))
    invoker = ProgressCallbackInvoker(lambda sent: progress.advance(task, sent))
    config = TransferConfig(
        max_concurrency=PARALLEL, multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES
    )
    # If an exception (Ctrl-C included) leaves this block, the manager aborts all transfers.
    with create_transfer_manager(s3, config) as manager:
        futures = [
            manager.upload(str(file.path), bucket, prefix + file.name, _CHECKSUM, [invoker])
            for file in files
        ]
        for file, future in zip(files, futures, strict=True):
            future.result()
            file.require_unchanged()


def crc32(path: Path) -> str:
    """The file's CRC-32 in S3's form: base64 of four big-endian bytes."""
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return base64.b64encode(value.to_bytes(4, "big")).decode()


def total_bytes(files: Sequence[LocalFile]) -> int:
    return sum(file.bytes for file in files)
