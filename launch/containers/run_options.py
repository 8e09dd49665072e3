"""The options of ``docker create`` that give one host what SageMaker would."""

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path

from launch.containers.engine import Engine
from launch.containers.image_name import ROOT


def bind(source: Path, target: str, *options: str) -> str:
    """A mount's option. Engines read it as a line of CSV, so any name of a folder will do."""
    line = io.StringIO()
    fields = ["type=bind", f"source={source}", f"target={target}", *options]
    csv.writer(line, lineterminator="").writerow(fields)
    return f"--mount={line.getvalue()}"


def mounts(folder: Path, run: Path, channels: dict[str, Path]) -> list[str]:
    """Mounts of one host. ``/opt/ml`` itself stays the container's own."""
    own = [bind(folder / part, f"/opt/ml/{part}") for part in ("model", "output")]
    given = [
        bind(path, f"/opt/ml/input/data/{name}", "readonly") for name, path in channels.items()
    ]
    if not channels:
        # The generated demo is no channel; this lets the desk and the container share it.
        demo = ROOT / "data"
        demo.mkdir(exist_ok=True)
        given.append(bind(demo, "/tmp/data"))
    return [
        bind(folder / "input", "/opt/ml/input", "readonly"),
        *own,
        # One prefix in S3 for all hosts: what one writes, all find again at the next start.
        bind(run / "checkpoints", "/opt/ml/checkpoints"),
        *given,
    ]


def network_options(network: str | None, host: str) -> list[str]:
    """How a host is reached, and what it reaches."""
    if network is None:
        # Its own name must resolve: code that waits for the hosts' names would wait for ever.
        return ["--network=none", f"--add-host={host}:127.0.0.1"]
    return [f"--network={network}", f"--network-alias={host}"]


def owner_options(engine: Engine) -> list[str]:
    """Let what the job writes belong to the person who started it."""
    user = f"{os.getuid()}:{os.getgid()}"
    if not engine.is_podman:
        # Without root, whoever runs the engine is root inside.
        return ["--user=0:0" if engine.is_rootless else f"--user={user}"]
    # SELinux labels would otherwise keep the container out of the mounted folders.
    own = ["--userns=keep-id"] if engine.is_rootless else []
    return [*own, f"--user={user}", "--security-opt=label=disable"]


def gpu_options(engine: Engine, indices: Sequence[str]) -> list[str]:
    if not indices:
        return []
    if engine.is_podman:
        return [f"--device=nvidia.com/gpu={index}" for index in indices]
    return [f'--gpus="device={",".join(indices)}"']


def environment_options(run: Path) -> list[str]:
    """The variables that SageMaker itself sets."""
    arn = f"arn:aws:sagemaker:local:000000000000:training-job/{run.name}"
    return [f"--env=TRAINING_JOB_NAME={run.name}", f"--env=TRAINING_JOB_ARN={arn}"]
