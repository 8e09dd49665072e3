"""Upload a folder to S3: ``make upload ARGS="FOLDER s3://BUCKET/PREFIX"``.

``python -m launch.upload`` sends what ``aws s3 sync`` would send: files that S3 lacks, and files
whose size differs from the object's or that are newer than it. Hidden files are left out. It never
deletes objects. ``DRY_RUN=1`` only counts the files. Run the same command again after an
interruption.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

from entry_point.contract.program import UserError
from launch.sagemaker.aws import aws_client, is_dry_run, open_session, run_and_explain
from launch.sagemaker.s3 import list_objects, split_prefix, upload


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 if S3 has all files (or DRY_RUN would send them), else 1."""
    parser = argparse.ArgumentParser(
        "python -m launch.upload",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("uri", metavar="s3://BUCKET/PREFIX")
    options = parser.parse_args(arguments)
    return run_and_explain(lambda: _run(options.folder, options.uri))


def _run(folder: Path, uri: str) -> int:
    bucket, prefix = split_prefix(uri, "s3")
    files = {path.relative_to(folder).as_posix(): path for path in list_files(folder)}
    found = {name: path.stat() for name, path in files.items()}
    if not files:
        raise UserError(f"{folder}: contains no files")
    s3 = aws_client(open_session(), "s3")
    objects = list_objects(s3, bucket, prefix)
    to_send = [name for name in files if _differs(found[name], objects.get(name))]
    size = sum(found[name].st_size for name in to_send)
    if not is_dry_run():
        columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, disable=not to_send) as progress:
            task = progress.add_task("uploading", total=size)
            contents = {prefix + name: files[name] for name in to_send}
            upload(s3, bucket, contents, lambda sent: progress.advance(task, sent))
    done = "would upload" if is_dry_run() else "uploaded"
    sys.stdout.write(
        f"{done} {len(to_send)} files, {size / 1e6:,.1f} MB, to {uri}; "
        f"{len(files) - len(to_send)} files are already there\n"
        f"to train on them, add job.channels.training={uri.rstrip('/')}/\n"
    )
    return 0


def _differs(local: os.stat_result, found: dict[str, Any] | None) -> bool:
    if found is None or found["Size"] != local.st_size:
        return True
    return bool(int(local.st_mtime) > found["LastModified"].timestamp())


def list_files(folder: Path) -> Iterator[Path]:
    """All files below the folder by name; follows links, skips hidden files and folders."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    for parent, folders, files in os.walk(folder, followlinks=True, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent) / name for name in sorted(files) if not name.startswith("."))


def _raise(error: OSError) -> NoReturn:
    raise error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
