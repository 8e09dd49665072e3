"""A run on this machine: its folder ``runs/NAME``, laid out and filled as SageMaker does."""

import json
import os
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

from entry_point.contract import hyperparameters
from entry_point.contract.platform_files import LOCAL
from entry_point.contract.whole_file import write_text
from launch.command_line import LaunchError

RUNS = Path("runs")
LATEST = "latest"
# The pattern of SageMaker's job names, so that a run and a job can have the same name.
NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
FOLDERS = ("input/config", "input/data", "model", "output/data", "checkpoints")
_CHANNEL = {
    "TrainingInputMode": "File",
    "S3DistributionType": "FullyReplicated",
    "RecordWrapperType": "None",
}


def split_name(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """The value of ``name=NAME``, and the other arguments; ``$NPROC`` becomes an override.

    Raises LaunchError if NAME is not a valid job name.
    """
    name = None
    overrides = []
    for argument in arguments:
        if argument.startswith("name="):
            name = argument.removeprefix("name=")
        else:
            overrides.append(argument)
    if name == LATEST:
        raise LaunchError(f"name={name}: reserved for the link to the newest run; choose another")
    if name is not None and not NAME.fullmatch(name):
        raise LaunchError(
            f"name={name}: must be 1 to 63 letters, digits and inner hyphens, such as first-try"
        )
    if processes := os.environ.get("NPROC"):
        overrides.append(f"trainer.nproc_per_host={processes}")
    return name, overrides


def create_run_folder(name: str | None) -> Path:
    """Create ``runs/NAME``, or a new folder named after the current time."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = RUNS / (name or stamp)
    attempt = 1
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=name is not None)
            return folder.resolve()
        except FileExistsError:
            attempt += 1
            folder = RUNS / f"{stamp}-{attempt}"


def point_latest_at(folder: Path) -> None:
    """Make ``runs/latest`` a link to this run; an existing link is replaced atomically."""
    fresh = RUNS / f".latest-{os.getpid()}"
    fresh.symlink_to(folder.name)
    fresh.replace(RUNS / LATEST)


def write_input_config(
    folder: Path,
    overrides: Sequence[str],
    *,
    hosts: Sequence[str],
    current: str,
    channels: Iterable[str] = (),
) -> None:
    """Fill ``folder``, one host's ``/opt/ml``: subfolders, mount points, input/config files."""
    names = list(channels)
    for part in (*FOLDERS, *(f"input/data/{name}" for name in names)):
        (folder / part).mkdir(parents=True, exist_ok=True)
    files = {
        "hyperparameters": hyperparameters.encode(overrides),
        "resourceconfig": _resource_config(hosts, current),
        "inputdataconfig": {name: dict(_CHANNEL) for name in names},
    }
    for name, content in files.items():
        path = folder / "input" / "config" / f"{name}.json"
        write_text(path, json.dumps(content, indent=2) + "\n")
        path.chmod(0o600)  # there may be credentials in it


def _resource_config(hosts: Sequence[str], current: str) -> dict[str, object]:
    """The hosts of the job, as the host ``current`` sees them."""
    group = "homogeneousCluster"
    return {
        "current_host": current,
        "current_instance_type": LOCAL,
        "current_group_name": group,
        "hosts": list(hosts),
        "instance_groups": [
            {
                "instance_group_name": group,
                "instance_type": LOCAL,
                "hosts": list(hosts),
            }
        ],
        "network_interface_name": "eth0",
    }
