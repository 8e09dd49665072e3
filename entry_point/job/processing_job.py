"""A SageMaker Processing job as its containers see it; it packs, or predicts."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from entry_point.job.hosts import Hosts, read_hosts
from entry_point.job.program import failure_file, run_program
from entry_point.job.run_folder import SHARDED, ContractError, read_json

ROOT = Path("/opt/ml")


@dataclass(frozen=True)
class ProcessingJob:
    root: Path
    """ROOT, or the folder that ML_ROOT names."""
    hosts: Hosts

    @property
    def input(self) -> Path:
        return self.root / "processing" / "input"

    @property
    def output(self) -> Path:
        return self.root / "processing" / "output"

    def shards_input(self, folder: Path) -> bool:
        """Returns whether `folder` holds only this host's share of the job's input
        (ShardedByS3Key).

        Raises ContractError if the job has several hosts and does not say.
        """
        if self.hosts.count == 1:
            return False
        path = self.root / "config" / "processingjobconfig.json"
        inputs = read_json(path).get("ProcessingInputs")
        if not isinstance(inputs, list):
            raise ContractError(
                f"{path}: must list ProcessingInputs, which say whether each host has all of "
                f"{folder}; set part=N/M"
            )
        from_s3 = [each["S3Input"] for each in inputs if "S3Input" in each]
        return any(
            folder.is_relative_to(each["LocalPath"])
            and each.get("S3DataDistributionType") == SHARDED
            for each in from_s3
        )


def run_command(name: str, program: Callable[[ProcessingJob | None], int]) -> int:
    """As `run_program`; `program` gets the job, or None outside one.

    In a job, the reason of a failure also goes to the file that SageMaker shows.
    """
    root = Path(os.environ.get("ML_ROOT", ROOT))
    if not (root / "config" / "resourceconfig.json").is_file():
        return run_program(name, lambda: program(None))
    return run_program(
        name,
        lambda: program(ProcessingJob(root, read_hosts(root / "config"))),
        failure_file(root / "output" / "message"),
    )
