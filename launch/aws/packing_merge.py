"""One index for the parts that a packing job's hosts have left in S3.

The shards stay where they are; only the parts' descriptions, reports and indexes travel, and the
program that unites parts on one machine unites these too, over files without content, but of the
shards' sizes, in their place.
"""

import json
import logging
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launch.aws import session as aws
from launch.aws.sagemaker_job import Job
from launch.request.launch_errors import LaunchError

REPOSITORY = Path(__file__).resolve().parents[2]
# Where packing's libraries are; they are the training job's.
PYTHON = REPOSITORY / ".venv" / "bin" / "python"
DESCRIPTION = "dataset.json"
_PART = re.compile(r"(part-\d+)/(.+)")

logger = logging.getLogger(__name__)


def merge(job: Job) -> str:
    """Unite what the job's hosts have made; returns the data set's S3 prefix.

    Doing it again does nothing. Raises LaunchError for a job that has not completed, a part or a
    shard that is missing, and for what the parts have against each other.
    """
    description = job.describe()
    if job.state(description) != "Completed":
        raise LaunchError(f"{job.name}: is {job.state(description)}; only a whole job is merged")
    uri: str = description["ProcessingOutputConfig"]["Outputs"][0]["S3Output"]["S3Uri"]
    hosts = description["ProcessingResources"]["ClusterConfig"]["InstanceCount"]
    with tempfile.TemporaryDirectory(prefix="merge-") as folder:
        _Merge(aws.client(job.session, "s3"), uri, Path(folder)).run(hosts)
    return uri


class _Merge:
    def __init__(self, s3: Any, uri: str, folder: Path) -> None:
        self._s3, self._uri, self._folder = s3, uri, folder
        self._bucket, prefix = aws.split_s3(uri, "output")
        self._prefix = f"{prefix}/".lstrip("/")

    def run(self, hosts: int) -> None:
        sizes = self._list()
        files = [name for name in sizes if _PART.fullmatch(name)]
        if DESCRIPTION not in sizes:
            parts = sorted({match[1] for name in files if (match := _PART.fullmatch(name))})
            if len(parts) != hosts:
                raise LaunchError(f"{self._uri}: has {len(parts)} parts of {hosts}, one a host")
            for name in files:
                self._download(name)
            for part in parts:
                self._place_shards(part, sizes)
            self._upload(self._unite(parts))
        # What the parts were made into is complete: now, and only now, they go.
        for name in [*files, "classes.txt"]:
            self._s3.delete_object(Bucket=self._bucket, Key=self._prefix + name)

    def _list(self) -> dict[str, int]:
        pages = self._s3.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._prefix
        )
        return {
            item["Key"].removeprefix(self._prefix): item["Size"]
            for page in pages
            for item in page.get("Contents", [])
        }

    def _download(self, name: str) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self._s3.download_file(self._bucket, self._prefix + name, str(path))

    def _place_shards(self, part: str, sizes: dict[str, int]) -> None:
        """A hole of its size for each of the part's shards, if S3 has the whole of it."""
        for name, size in _shards(self._folder / part / DESCRIPTION):
            if sizes.get(name) != size:
                raise LaunchError(
                    f"{self._uri}/{name}: has {sizes.get(name, 'no')} bytes, {part} says {size}: "
                    "pack again"
                )
            path = self._folder / part / name
            path.parent.mkdir(exist_ok=True)
            with path.open("wb") as file:
                file.truncate(size)

    def _unite(self, parts: list[str]) -> Path:
        if not PYTHON.is_file():
            raise LaunchError("the merge needs the job's libraries: make setup installs them")
        output = self._folder / "all"
        folders = ",".join(f"'{self._folder / part}'" for part in parts)
        done = subprocess.run(
            [str(PYTHON), "-m", "entry_point.optimize", f"merge=[{folders}]", f"output='{output}'"],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            lines = (done.stdout + done.stderr).strip().splitlines() or ["no reason given"]
            raise LaunchError(f"{self._uri}: the parts cannot be united: {lines[-1]}")
        return output

    def _upload(self, output: Path) -> None:
        """All but the shards; the description last, since it says that the data set is whole."""
        found = [path for path in output.rglob("*") if path.is_file() and path.suffix != ".tar"]
        for path in sorted(found, key=lambda path: path.name == DESCRIPTION):
            key = self._prefix + path.relative_to(output).as_posix()
            self._s3.upload_file(str(path), self._bucket, key)


def _shards(description: Path) -> Iterator[tuple[str, int]]:
    """Name below the data set's root and bytes of each shard of a part."""
    if not description.is_file():
        raise LaunchError(f"{description.parent.name} has no {DESCRIPTION}: pack again")
    for split, content in json.loads(description.read_text())["splits"].items():
        for shard in content["shards"]:
            yield f"{split}/{shard['file']}", shard["bytes"]
