"""The files that SageMaker writes into a container's `/opt/ml`, for tests of what a job reads."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from entry_point.config import hyperparameters

FOLDERS = ("input/config", "input/data", "model", "output/data", "checkpoints")
CHANNEL = {
    "TrainingInputMode": "File",
    "S3DistributionType": "FullyReplicated",
    "RecordWrapperType": "None",
}


def write_input_config(
    folder: Path,
    overrides: Sequence[str],
    *,
    hosts: Sequence[str] = ("algo-1",),
    current: str = "algo-1",
    channels: Iterable[str] = (),
) -> None:
    """Fill ``folder``, one host's ``/opt/ml``: subfolders, mount points, input/config files."""
    names = list(channels)
    for part in (*FOLDERS, *(f"input/data/{name}" for name in names)):
        (folder / part).mkdir(parents=True, exist_ok=True)
    group = {
        "instance_group_name": "homogeneousCluster",
        "instance_type": "ml.c7i.large",
        "hosts": list(hosts),
    }
    files = {
        "hyperparameters": hyperparameters.encode(overrides),
        "resourceconfig": {
            "current_host": current,
            "current_instance_type": group["instance_type"],
            "current_group_name": group["instance_group_name"],
            "hosts": list(hosts),
            "instance_groups": [group],
            "network_interface_name": "eth0",
        },
        "inputdataconfig": dict.fromkeys(names, CHANNEL),
    }
    for name, content in files.items():
        path = folder / "input" / "config" / f"{name}.json"
        path.write_text(json.dumps(content, indent=2))
