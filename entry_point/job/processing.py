"""A SageMaker Processing job, whose hosts each pack or predict a part."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from entry_point.job.hosts import Hosts, read_hosts
from entry_point.job.run_folder import CONTAINER_ROOT, SHARDED, read_json


def is_processing(root: Path) -> bool:
    """Returns whether the files of a Processing job are below this root."""
    # Not pathlib's, which raises an error for a folder that cannot be read.
    return os.path.isfile(root / "config" / "resourceconfig.json")  # noqa: PTH113


@dataclass(frozen=True)
class ProcessingJob:
    """A SageMaker Processing job as its containers see it."""

    root: Path
    """Folder of the platform's files: CONTAINER_ROOT, or the one that ML_ROOT names."""
    hosts: Hosts

    @classmethod
    def here(cls) -> ProcessingJob | None:
        """Returns the job of this container; None outside one. Raises ContractError."""
        root = Path(os.environ.get("ML_ROOT", CONTAINER_ROOT))
        return cls(root, read_hosts(root / "config")) if is_processing(root) else None

    @property
    def input(self) -> Path:
        return self.root / "processing" / "input"

    @property
    def output(self) -> Path:
        return self.root / "processing" / "output"

    def shards_input(self, folder: Path) -> bool:
        """Returns whether `folder` holds only this host's share of the job's input
        (ShardedByS3Key)."""
        if self.hosts.count == 1:
            return False
        job = read_json(self.root / "config" / "processingjobconfig.json")
        inputs = job.get("ProcessingInputs") or []  # null if the data is in the image
        from_s3 = [each["S3Input"] for each in inputs if "S3Input" in each]
        return any(
            folder.is_relative_to(each["LocalPath"])
            and each.get("S3DataDistributionType") == SHARDED
            for each in from_s3
        )
