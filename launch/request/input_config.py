"""A run folder's files as SageMaker writes them into ``/opt/ml/input/config``."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from entry_point.contract import hyperparameters

INSTANCE_TYPE = "local"
FOLDERS = ("input/config", "input/data", "model", "output/data", "checkpoints")


def resource_config(hosts: Sequence[str], current: str) -> dict[str, object]:
    """Who takes part in the job, as the host ``current`` is told."""
    return {
        "current_host": current,
        "current_instance_type": INSTANCE_TYPE,
        "current_group_name": "homogeneousCluster",
        "hosts": list(hosts),
        "instance_groups": [
            {
                "instance_group_name": "homogeneousCluster",
                "instance_type": INSTANCE_TYPE,
                "hosts": list(hosts),
            }
        ],
        "network_interface_name": "eth0",
    }


def channel_config(channels: Iterable[str]) -> dict[str, object]:
    """Where the input comes from, one entry per channel."""
    return {
        channel: {
            "TrainingInputMode": "File",
            "S3DistributionType": "FullyReplicated",
            "RecordWrapperType": "None",
        }
        for channel in channels
    }


def write_contract(
    folder: Path,
    overrides: Sequence[str],
    *,
    hosts: Sequence[str],
    current: str,
    channels: Iterable[str] = (),
) -> None:
    """Fill ``folder``, one host's ``/opt/ml``: sub-folders, channels' mount points, JSON files."""
    names = list(channels)
    for part in (*FOLDERS, *(f"input/data/{name}" for name in names)):
        (folder / part).mkdir(parents=True, exist_ok=True)
    files = {
        "hyperparameters": hyperparameters.encode(overrides),
        "resourceconfig": resource_config(hosts, current),
        "inputdataconfig": channel_config(names),
    }
    for name, content in files.items():
        path = folder / "input" / "config" / f"{name}.json"
        path.write_text(json.dumps(content, indent=2) + "\n")
