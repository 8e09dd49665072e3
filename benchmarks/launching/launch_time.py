"""Time to import the launcher, print a request and import the SDKs: docs/results/launch.md.

``python -m benchmarks.launching.launch_time [ROUNDS]``.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import measure

ROOT = Path(__file__).resolve().parents[2]
SDK = ROOT / ".venv-launch-v3" / "bin" / "python"
ACCOUNT = "123456789012"
JOB = [
    f"job.role=arn:aws:iam::{ACCOUNT}:role/training",
    f"target.image={ACCOUNT}.dkr.ecr.eu-west-1.amazonaws.com/training@sha256:{'0' * 64}",
]
TRAINING = [*JOB, "job.output=s3://bucket/runs", "target=gpu_spot", "model=resnet50"]
PACKING = [*JOB, "source=s3://bucket/photos", "output=s3://bucket/packed"]
# Name -> command and the goal for its wall-clock seconds, if there is one.
Commands = dict[str, tuple[list[str], float | None]]


def commands() -> Commands:
    """Returns the commands to time, and the import of the SDK if it is installed."""
    python = ROOT / ".venv-launch" / "bin" / "python"
    if not python.exists():
        sys.exit("launch_time: `make figures ONLY=launch` installs what this needs")
    run, code = [str(python), "-m"], [str(python), "-c"]
    found: Commands = {
        "python alone": ([*code, "pass"], None),
        "import launch.sagemaker": ([*code, "import launch.sagemaker.__main__"], 0.5),
        "import all that a launch needs": ([*code, "import launch.sagemaker.plan"], 0.5),
        "training, DRY_RUN=1": ([*run, "launch.sagemaker", "train", *TRAINING], 2.0),
        "packing, DRY_RUN=1": ([*run, "launch.sagemaker", "dataset", *PACKING], 2.0),
    }
    if SDK.exists():
        sdk = "import launch.notebook, sagemaker.train"
        found[sdk] = ([str(SDK), "-c", sdk], None)
    arguments = f"ARGS={' '.join(TRAINING)}"
    found["make sagemaker-train DRY_RUN=1"] = (["make", "-s", "sagemaker-train", arguments], None)
    return found


def run(command: Sequence[str]) -> None:
    environment = {**os.environ, "DRY_RUN": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"launch_time: {' '.join(command)}\n{done.stderr}")


def clocks() -> NDArray[np.float64]:
    """Wall-clock and CPU seconds."""
    return np.array([time.perf_counter(), measure.cpu_seconds()])


def main(arguments: Sequence[str]) -> None:
    rounds = int((*arguments, "7")[0])
    contenders = commands()
    todo = {name: partial(run, command) for name, (command, _) in contenders.items()}
    rows = []
    for name, taken in measure.alternate(todo, rounds + 1, clocks).items():
        clock, cpu = np.median(taken[1:], axis=0)  # the first round warms up
        goal = contenders[name][1]
        verdict = "" if goal is None else f"{goal:g}, {'met' if clock <= goal else 'NOT MET'}"
        rows.append([name, f"{clock:.2f}", f"{cpu:.2f}", verdict])
    method = (
        f"Each command in a new process: medians of {rounds} alternating rounds after one warm-up "
        "round. A dry run composes the config and checks the request against the service's "
        "description; it needs no SDK, network or credentials. The SDKs are for notebooks."
    )
    header = ["command", "seconds", "CPU seconds", "goal"]
    title, packages = "Time to launch a job", ("hydra-core", "boto3")
    sys.stdout.write(
        measure.write("launch", "launch", title, method, [measure.table(header, rows)], packages)
    )


if __name__ == "__main__":
    main(sys.argv[1:])
