"""Merging the parts that a packing job's hosts leave in S3 into one dataset.

The shards stay in S3: only the small files of the parts are downloaded. The local merge
(`entry_point.optimize merge=...`) then runs over empty files that have the shards' names and sizes.
"""

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launch.command_line import LaunchError
from launch.sagemaker.aws import aws_client
from launch.sagemaker.jobs import Job
from launch.sagemaker.s3 import object_sizes, split_prefix

REPOSITORY = Path(__file__).resolve().parents[2]
# Packing needs the libraries of the training job, which this environment lacks.
PYTHON = REPOSITORY / ".venv" / "bin" / "python"
DESCRIPTION = "dataset.json"
_PART = re.compile(r"(part-\d+)/(.+)")


def merge(job: Job) -> str:
    """Merge the parts of a completed job; returns the dataset's S3 prefix.

    Merging again changes nothing. Raises LaunchError if the job is no packing job or has not
    completed, a part or a shard is missing, or the parts do not fit together.
    """
    if job.kind != "Processing":
        needed = "--merge needs the packing job that wrote the parts"
        raise LaunchError(f"{job.name}: is a {job.kind} job; {needed}")
    description = job.describe()
    if job.state(description) != "Completed":
        raise LaunchError(f"{job.name}: is {job.state(description)}; must be Completed to merge")
    uri: str = description["ProcessingOutputConfig"]["Outputs"][0]["S3Output"]["S3Uri"]
    hosts = description["ProcessingResources"]["ClusterConfig"]["InstanceCount"]
    with tempfile.TemporaryDirectory(prefix="merge-") as folder:
        _Merge(aws_client(job.session, "s3"), uri, Path(folder)).run(hosts)
    return uri


class _Merge:
    def __init__(self, s3: Any, uri: str, folder: Path) -> None:
        self._s3, self._uri, self._folder = s3, uri, folder
        self._bucket, self._prefix = split_prefix(uri, "output")

    def run(self, hosts: int) -> None:
        sizes = object_sizes(self._s3, self._bucket, self._prefix)
        files = [name for name in sizes if _PART.fullmatch(name)]
        if DESCRIPTION not in sizes:
            parts = sorted({match[1] for name in files if (match := _PART.fullmatch(name))})
            if len(parts) != hosts:
                raise LaunchError(
                    f"{self._uri}: has {len(parts)} of {hosts} parts, one per host; pack again"
                )
            for name in files:
                path = self._folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                self._s3.download_file(self._bucket, self._prefix + name, str(path))
            for part in parts:
                self._place_shards(part, sizes)
            self._upload(self._merge_parts(parts))
        # The merged dataset is complete, so the parts are no longer needed.
        for name in [*files, "classes.txt"]:
            self._s3.delete_object(Bucket=self._bucket, Key=self._prefix + name)

    def _place_shards(self, part: str, sizes: dict[str, int]) -> None:
        """Create a sparse file of each shard's size; raises LaunchError if S3 lacks the shard."""
        for name, size in _shards(self._folder / part / DESCRIPTION):
            if sizes.get(name) != size:
                raise LaunchError(
                    f"{self._uri}/{name}: has {sizes.get(name, 'no')} bytes, must have {size} "
                    f"({part}/{DESCRIPTION}); pack again"
                )
            path = self._folder / part / name
            path.parent.mkdir(exist_ok=True)
            with path.open("wb") as file:
                file.truncate(size)

    def _merge_parts(self, parts: list[str]) -> Path:
        if not PYTHON.is_file():
            raise LaunchError("merging needs the libraries of the job: run `make setup`")
        output = self._folder / "all"
        folders = ",".join(f"'{self._folder / part}'" for part in parts)
        done = subprocess.run(
            [str(PYTHON), "-m", "entry_point.optimize", f"merge=[{folders}]", f"output='{output}'"],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            lines = (done.stdout + done.stderr).strip().splitlines() or ["unknown reason"]
            raise LaunchError(f"{self._uri}: the parts cannot be merged: {lines[-1]}")
        return output

    def _upload(self, output: Path) -> None:
        """Upload all but the shards; the description last, as it marks the dataset as complete."""
        found = [path for path in output.rglob("*") if path.is_file() and path.suffix != ".tar"]
        for path in sorted(found, key=lambda path: path.name == DESCRIPTION):
            key = self._prefix + path.relative_to(output).as_posix()
            self._s3.upload_file(str(path), self._bucket, key)


def _shards(description: Path) -> Iterator[tuple[str, int]]:
    """Path in the dataset and bytes of each shard of a part."""
    if not description.is_file():
        raise LaunchError(f"{description.parent.name} has no {DESCRIPTION}; pack again")
    for split, content in json.loads(description.read_text())["splits"].items():
        for shard in content["shards"]:
            yield f"{split}/{shard['file']}", shard["bytes"]
