"""How long the desk takes to show a request, and to be ready before any SDK is needed.

``python -m benchmarks.launching.launch_time [rounds]`` starts each command anew, in turn,
in the environment of each SDK that `make` has installed, and writes docs/results/launch.md.
"""

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.measure import table, write

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = {"v2": ".venv-launch", "v3": ".venv-launch-v3"}
ACCOUNT = "123456789012"
JOB = [
    f"job.role=arn:aws:iam::{ACCOUNT}:role/training",
    f"target.image={ACCOUNT}.dkr.ecr.eu-west-1.amazonaws.com/training@sha256:{'0' * 64}",
]
TRAINING = [*JOB, "job.output=s3://bucket/runs", "target=gpu_spot", "model=resnet50"]
PACKING = [*JOB, "source=s3://bucket/photos", "output=s3://bucket/packed"]
# Command -> the most seconds it may take, None where only the figure is wanted.
Commands = dict[str, tuple[list[str], float | None]]


def commands() -> Commands:
    """What is timed: name -> command and bar."""
    found: Commands = {}
    for sdk, folder in ENVIRONMENTS.items():
        python = ROOT / folder / "bin" / "python"
        if not python.exists():
            continue
        run = [str(python), "-m"]
        code = [str(python), "-c"]
        found |= {
            f"{sdk}: python alone": ([*code, "pass"], None),
            f"{sdk}: import launch.sagemaker": ([*code, "import launch.sagemaker"], 0.5),
            f"{sdk}: import all but the SDK": ([*code, "import launch.aws.training_job"], 0.5),
            f"{sdk}: training, DRY_RUN=1": ([*run, "launch.sagemaker", "train", *TRAINING], 2.0),
            f"{sdk}: packing, DRY_RUN=1": ([*run, "launch.dataset", *PACKING], 2.0),
            f"{sdk}: set-up, DRY_RUN=1": ([*run, "launch.setup_aws", "bucket=bucket"], 2.0),
            f"{sdk}: import the SDK": ([*code, f"import launch.aws.sdk.{sdk}"], None),
        }
    if not found:
        sys.exit("launch_time: neither SDK is installed; make test-launch installs both")
    arguments = f"ARGS={' '.join(TRAINING)}"
    found["make sagemaker-train DRY_RUN=1"] = (["make", "-s", "sagemaker-train", arguments], None)
    return found


def seconds(command: Sequence[str]) -> tuple[float, float]:
    """By the clock, and of CPU, for the command and all that it starts."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = {**os.environ, "DRY_RUN": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    clock, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"launch_time: {' '.join(command)}\n{done.stderr}")
    return clock, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def medians(contenders: Commands, rounds: int) -> Mapping[str, tuple[float, float]]:
    """Clock and CPU seconds of each, the medians of alternating rounds after one to warm up."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, (command, _) in contenders.items():
            taken = seconds(command)
            if turn:
                found[name].append(taken)
    return {
        name: (statistics.median(c for c, _ in taken), statistics.median(p for _, p in taken))
        for name, taken in found.items()
    }


def main(arguments: Sequence[str]) -> None:
    """Time everything, write the page, print it."""
    rounds = int((*arguments, "7")[0])
    contenders = commands()
    rows = []
    for name, (clock, cpu) in medians(contenders, rounds).items():
        bar = contenders[name][1]
        verdict = "" if bar is None else f"{bar:g}, {'held' if clock <= bar else 'NOT HELD'}"
        rows.append([name, f"{clock:.2f}", f"{cpu:.2f}", verdict])
    method = (
        f"`python -m benchmarks.launching.launch_time`: each command in a process of its "
        f"own, {rounds} alternating rounds after one to warm up, medians. v2 and v3 are the "
        "environments of the two SDKs; a dry run composes, checks against the service's "
        "description, and needs neither SDK, network nor credentials."
    )
    header = ["what", "seconds", "CPU seconds", "bar"]
    title, packages = "Launching: time at the desk", ("hydra-core", "boto3")
    sys.stdout.write(write("launch", title, method, [table(header, rows)], packages))


if __name__ == "__main__":
    main(sys.argv[1:])
