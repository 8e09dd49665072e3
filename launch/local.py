"""Run the job on this machine, in a run folder shaped like the container's ``/opt/ml``.

``python -m launch.local [name=NAME] [Hydra overrides]`` writes what SageMaker would write into
``runs/NAME/input/config`` and becomes the very process the container starts. Naming a run again
goes on from its checkpoints; without a name each run gets a folder of its own.
"""

import os
import re
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from entry_point.contract.run_folder import RunFolder, RunFolderError
from launch.request.input_config import write_contract

RUNS = Path("runs")
HOST = "algo-1"
LATEST = "latest"
# What SageMaker accepts as a training job's name, so that a run's name can become a job's.
NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")


def split_name(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Take ``name=NAME`` out of the overrides; raises ValueError for a name no job may have."""
    name = None
    overrides = []
    for argument in arguments:
        if argument.startswith("name="):
            name = argument.removeprefix("name=")
        else:
            overrides.append(argument)
    if name == LATEST:
        raise ValueError(f"name={name}: leads to the newest run; use that run's own name")
    if name is not None and not NAME.fullmatch(name):
        raise ValueError(
            f"name={name}: use 1 to 63 letters, digits and inner hyphens, as in name=first-try"
        )
    return name, overrides


def run_folder(name: str | None) -> Path:
    """Create ``runs/NAME`` (a new one, called after the time, if unnamed)."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = RUNS / (name or stamp)
    attempt = 1
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=name is not None)
            break
        except FileExistsError:
            attempt += 1
            folder = RUNS / f"{stamp}-{attempt}"
    return folder.resolve()


def point_latest_at(folder: Path) -> None:
    """Let ``runs/latest`` lead to this run, replacing the old link in one step."""
    link = RUNS / LATEST
    fresh = RUNS / f".latest-{os.getpid()}"
    fresh.symlink_to(folder.name)
    fresh.replace(link)


def check_start(name: str | None, overrides: Sequence[str]) -> None:
    """Raise RunFolderError or ValueError for a job that would not start, before it leaves a trace.

    It composes the configuration that the job is to compose again.
    """
    # Not above: docker-train, which shares this file, runs without Hydra.
    from entry_point.config.train_config import load_train_config

    if name is not None:
        RunFolder(RUNS / name).ensure_idle()
    load_train_config(overrides)


def main(arguments: Sequence[str]) -> None:
    """Prepare the run folder and replace this process by the job's."""
    try:
        name, overrides = split_name(arguments)
        if processes := os.environ.get("NPROC"):
            overrides.append(f"trainer.nproc_per_host={processes}")
        check_start(name, overrides)
    except (ValueError, RunFolderError) as error:
        sys.stderr.write(f"local-train: {error}\n")
        sys.exit(2)
    folder = run_folder(name)
    write_contract(folder, overrides, hosts=[HOST], current=HOST)
    point_latest_at(folder)
    # Becoming the job, rather than waiting for it, leaves signals and the exit code untouched.
    os.environ["ML_ROOT"] = str(folder)
    os.execv(sys.executable, [sys.executable, "-m", "entry_point.container", "train"])


if __name__ == "__main__":
    main(sys.argv[1:])
