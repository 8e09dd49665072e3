"""Options of ``docker create`` that set up one host as SageMaker does."""

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path

from launch.containers.engine import Engine
from launch.containers.image_name import ROOT


def bind(source: Path, target: str, *options: str) -> str:
    """The option for a mount. It is parsed as CSV, so quoting allows any folder name."""
    line = io.StringIO()
    fields = ["type=bind", f"source={source}", f"target={target}", *options]
    csv.writer(line, lineterminator="").writerow(fields)
    return f"--mount={line.getvalue()}"


def mounts(folder: Path, run: Path, channels: dict[str, Path]) -> list[str]:
    """Mounts of one host. ``/opt/ml`` itself is not mounted."""
    outputs = [bind(folder / part, f"/opt/ml/{part}") for part in ("model", "output")]
    inputs = [
        bind(path, f"/opt/ml/input/data/{name}", "readonly") for name, path in channels.items()
    ]
    if not channels:
        # The demo dataset is not a channel; this mount shares it between host and container.
        demo = ROOT / "data"
        demo.mkdir(exist_ok=True)
        inputs.append(bind(demo, "/tmp/data"))
    return [
        bind(folder / "input", "/opt/ml/input", "readonly"),
        *outputs,
        # SageMaker has one checkpoint prefix for all hosts.
        bind(run / "checkpoints", "/opt/ml/checkpoints"),
        *inputs,
    ]


def network_options(network: str | None, host: str) -> list[str]:
    """Options for the network and the host's name in it."""
    if network is None:
        # The job waits until the names of all hosts resolve, its own included.
        return ["--network=none", f"--add-host={host}:127.0.0.1"]
    return [f"--network={network}", f"--network-alias={host}"]


def owner_options(engine: Engine) -> list[str]:
    """Make the user the owner of the files that the job writes."""
    user = f"{os.getuid()}:{os.getgid()}"
    if not engine.is_podman:
        # In a rootless engine, root in the container is the user outside.
        return ["--user=0:0" if engine.is_rootless else f"--user={user}"]
    # SELinux would otherwise deny the container access to the mounted folders.
    namespace = ["--userns=keep-id"] if engine.is_rootless else []
    return [*namespace, f"--user={user}", "--security-opt=label=disable"]


def gpu_options(engine: Engine, indices: Sequence[str]) -> list[str]:
    if not indices:
        return []
    if engine.is_podman:
        return [f"--device=nvidia.com/gpu={index}" for index in indices]
    return [f'--gpus="device={",".join(indices)}"']


def environment_options(run: Path) -> list[str]:
    """The environment variables that SageMaker sets."""
    arn = f"arn:aws:sagemaker:local:000000000000:training-job/{run.name}"
    return [f"--env=TRAINING_JOB_NAME={run.name}", f"--env=TRAINING_JOB_ARN={arn}"]
