"""Train in the image on this machine, under the contract that SageMaker keeps.

``python -m launch.docker [name=NAME] [channel.NAME=FOLDER] [Hydra overrides]``, which is
``make docker-train``. ``data.root=FOLDER`` becomes the channel ``training``. Settings come from
the environment: HOSTS (default 1), NETWORK=none (no way out, as under network isolation),
GPUS=0 (use none), SHM_SIZE (default 1g), and what ``launch.image`` reads to name the image.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launch.contract import write_contract
from launch.docker_run import Containers, say
from launch.engine import ContainerError, Engine, find_engine
from launch.image import ROOT, local_reference
from launch.local import point_latest_at, run_folder, split_name

CHANNEL = re.compile(r"channel\.([A-Za-z0-9._-]{1,64})=(.+)")
STOP_SECONDS = 120
MOST_HOSTS = 16


@dataclass(frozen=True)
class Settings:
    """What the environment says of the machine to rehearse; errors name the variable."""

    hosts: int = 1
    isolated: bool = False
    shm_size: str = "1g"
    gpus: list[str] = field(default_factory=list)

    @classmethod
    def from_environment(cls) -> "Settings":
        hosts, network = os.environ.get("HOSTS") or "1", os.environ.get("NETWORK") or ""
        if not hosts.isdecimal() or not 1 <= int(hosts) <= MOST_HOSTS:
            raise ContainerError(f"HOSTS={hosts}: use a number from 1 to {MOST_HOSTS}")
        if network not in ("", "none"):
            raise ContainerError(f"NETWORK={network}: use none, or leave it out")
        shm_size = os.environ.get("SHM_SIZE") or "1g"
        gpus = [] if os.environ.get("GPUS") == "0" else gpus_present()
        return cls(int(hosts), network == "none", shm_size, gpus)

    @property
    def names(self) -> list[str]:
        """The hosts' names in SageMaker's order, which is that of text."""
        return sorted(f"algo-{number}" for number in range(1, self.hosts + 1))

    def gpus_of(self, host: str) -> list[str]:
        """This host's share of the GPUs: no two hosts may use the same one."""
        return self.gpus[self.names.index(host) :: self.hosts]


def gpus_present() -> list[str]:
    """Indices of the NVIDIA GPUs of this machine; none without a driver."""
    if not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True)
    return done.stdout.split() if done.returncode == 0 else []


def split_channels(arguments: Sequence[str]) -> tuple[dict[str, Path], list[str]]:
    """Take the folders out of the overrides; raises ContainerError for one that is not there."""
    channels: dict[str, Path] = {}
    overrides: list[str] = []
    for argument in arguments:
        match = CHANNEL.fullmatch(argument)
        key, _, value = argument.partition("=")
        if match:
            channels[match[1]] = Path(match[2])
        elif key == "data.root" and value not in ("", "null"):
            channels["training"] = Path(value)
        else:
            overrides.append(argument)
    for name, folder in channels.items():
        if not folder.is_dir():
            raise ContainerError(
                f"{folder}: no such folder to mount as the channel {name}; "
                "give one of this machine in data.root=... or channel.NAME=..."
            )
    return {name: folder.resolve() for name, folder in channels.items()}, overrides


def host_folder(run: Path, host: str, first: str) -> Path:
    """One host's ``/opt/ml``: the run folder itself for the first, which leads the job."""
    return run if host == first else run / "hosts" / host


def mounts(folder: Path, run: Path, channels: dict[str, Path]) -> list[str]:
    """Volume options of one host. ``/opt/ml`` itself stays the container's own."""
    volumes = [
        f"{folder}/input:/opt/ml/input:ro",
        f"{folder}/model:/opt/ml/model",
        f"{folder}/output:/opt/ml/output",
        # One prefix in S3 for all hosts: what one writes, all find again at the next start.
        f"{run}/checkpoints:/opt/ml/checkpoints",
    ]
    volumes += [f"{path}:/opt/ml/input/data/{name}:ro" for name, path in channels.items()]
    if not channels:
        # The generated demo is no channel; this lets the desk and the container share it.
        demo = ROOT / "data"
        demo.mkdir(exist_ok=True)
        volumes.append(f"{demo}:/tmp/data")
    return [f"--volume={volume}" for volume in volumes]


def network_options(network: str | None, host: str) -> list[str]:
    """How a host is reached, and what it reaches."""
    if network is None:
        # Its own name must resolve: code that waits for the hosts' names would wait for ever.
        return ["--network=none", f"--add-host={host}:127.0.0.1"]
    return [f"--network={network}", f"--network-alias={host}"]


def owner_options(engine: Engine) -> list[str]:
    """Let what the job writes belong to the person who started it."""
    user = f"{os.getuid()}:{os.getgid()}"
    if engine.is_podman:
        # SELinux labels would otherwise keep the container out of the mounted folders.
        return ["--userns=keep-id", f"--user={user}", "--security-opt=label=disable"]
    return [f"--user={user}"]


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


def train(arguments: Sequence[str]) -> int:
    """Run the job to its end; returns its exit code. Raises ContainerError before it starts."""
    settings = Settings.from_environment()
    engine, image = find_engine(), local_reference()
    if engine.image(image) is None:
        raise ContainerError(f"there is no image {image}: run `make image` first")
    try:
        name, rest = split_name(arguments)
    except ValueError as error:
        raise ContainerError(str(error)) from error
    channels, overrides = split_channels(rest)
    run = run_folder(name)
    point_latest_at(run)
    hosts = settings.names
    say(f"{image} on {len(hosts)} host(s); /opt/ml is {run}")
    with Containers(engine, f"{run.name}-{os.getpid()}", STOP_SECONDS) as containers:
        alone = settings.isolated and len(hosts) == 1
        network = None if alone else containers.create_network(settings.isolated)
        for host in hosts:
            folder = host_folder(run, host, hosts[0])
            write_contract(folder, overrides, hosts=hosts, current=host, channels=sorted(channels))
            containers.create(
                host,
                f"--hostname={host}",
                f"--shm-size={settings.shm_size}",
                *network_options(network, host),
                *owner_options(engine),
                *mounts(folder, run, channels),
                *gpu_options(engine, settings.gpus_of(host)),
                *environment_options(run),
                image,
                "train",
            )
        code = containers.run()
    say(f"exit code {code}; /opt/ml was {run}")
    return code


def main(arguments: Sequence[str]) -> int:
    """Command line; an error before the job starts is one line and exit code 1."""
    try:
        return train(arguments)
    except ContainerError as error:
        sys.stderr.write(f"docker-train: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("docker-train: stopped before the job started\n")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
