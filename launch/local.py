"""Train on this machine, in a run folder with the layout of the container's ``/opt/ml``.

``python -m launch.local [name=NAME] [Hydra overrides]`` is ``make local-train``. It writes the
files that SageMaker would write into ``runs/NAME/input/config``, then replaces itself with the
process that the container starts. The same name again resumes the run from its checkpoints;
without a name, each run gets a new folder.
"""

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from entry_point.config.credentials import refuse_in_overrides
from entry_point.job import hyperparameters
from entry_point.job.program import (
    ExitCode,
    UserError,
    asks_for_help,
    defer_stop,
    exit_on_stop,
    run_program,
)
from entry_point.job.run_folder import LATEST, LINK_LATEST, LOCAL, NEW_RUN, RunFolder
from entry_point.job.whole_file import write_text

HOST = "algo-1"
RUNS = Path("runs")
# The pattern of SageMaker's job names, so that a run and a job can have the same name.
NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
FOLDERS = ("input/config", "input/data", "model", "output/data", "checkpoints")
_CHANNEL = {
    "TrainingInputMode": "File",
    "S3DistributionType": "FullyReplicated",
    "RecordWrapperType": "None",
}


def start(arguments: Sequence[str]) -> int:
    """Prepare the run folder, then replace this process with the job.

    Raises UserError, before any file is written, if the job cannot start.
    """
    # Here, because requests to stop that come while they load must be heeded.
    from entry_point.config.train_config import load_train_config

    name, overrides = split_name(arguments)
    load_train_config(overrides)
    is_new = name is None or not (RUNS / name).exists()
    folder = create_run_folder(name)
    lock = RunFolder(folder).hold()
    os.environ["ML_ROOT"] = os.environ[LINK_LATEST] = str(folder)
    os.environ[NEW_RUN] = str(folder) if is_new else ""
    write_input_config(folder, overrides, hosts=[HOST], current=HOST)
    os.set_inheritable(lock.fileno(), True)  # the job takes over the lock
    defer_stop()
    # With exec, the job itself receives signals and sets the exit code.
    os.execv(sys.executable, [sys.executable, "-m", "entry_point", "train"])


def split_name(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Returns the value of ``name=NAME``, and the other arguments.

    Raises UserError if NAME is not a valid job name, or if any argument has credentials.
    """
    refuse_in_overrides(arguments)
    names = [each.partition("=")[2] for each in arguments if each.startswith("name=")]
    overrides = [each for each in arguments if not each.startswith("name=")]
    name = names[-1] if names else None
    if name == LATEST:
        raise UserError(f"name={name}: reserved for the link to the newest run; choose another")
    if name is not None and not NAME.fullmatch(name):
        raise UserError(
            f"name={name}: must be 1 to 63 letters, digits and inner hyphens, such as first-try"
        )
    return name, overrides


def create_run_folder(name: str | None) -> Path:
    """Creates ``runs/NAME`` unless it exists, or a new folder named after the current time."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    folder, attempt = RUNS / (name or stamp), 1
    while True:
        try:
            folder.mkdir(parents=True)
            return folder.resolve()
        except FileExistsError:
            if name is not None:
                return folder.resolve()
            attempt += 1
            folder = RUNS / f"{stamp}-{attempt}"


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


def _resource_config(hosts: Sequence[str], current: str) -> dict[str, object]:
    """Returns the hosts of the job, as the host ``current`` sees them."""
    group = {
        "instance_group_name": "homogeneousCluster",
        "instance_type": LOCAL,
        "hosts": list(hosts),
    }
    return {
        "current_host": current,
        "current_instance_type": LOCAL,
        "current_group_name": group["instance_group_name"],
        "hosts": list(hosts),
        "instance_groups": [group],
        "network_interface_name": "eth0",
    }


def main(arguments: Sequence[str]) -> None:
    """Start the job; an error before that is one line on stderr."""
    if not asks_for_help(arguments, __doc__):
        sys.exit(run_program("local-train", partial(start, arguments)))
    from entry_point.config.train_config import TrainConfig
    from entry_point.config.usage import print_settings

    print_settings(TrainConfig)


if __name__ == "__main__":
    exit_on_stop(ExitCode.STOPPED)
    main(sys.argv[1:])
