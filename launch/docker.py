"""Train in the image on this machine, under the contract that SageMaker keeps.

``python -m launch.docker [name=NAME] [channel.NAME=FOLDER] [Hydra overrides]``, which is
``make docker-train``. ``data.root=FOLDER`` becomes the channel ``training``. Settings come from
the environment: HOSTS (default 1), NETWORK=none (no way out, as under network isolation), GPUS
(how many to use; default all), NPROC (processes per host), SHM_SIZE (default 1g), and what
``launch.image`` reads to name the image.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from entry_point.contract.run_folder import RunFolder, RunFolderError
from launch.containers.container_run import Containers, say
from launch.containers.engine import ContainerError, Engine, find_engine
from launch.containers.run_options import (
    environment_options,
    gpu_options,
    mounts,
    network_options,
    owner_options,
)
from launch.image import local_reference
from launch.local import point_latest_at, run_folder, split_name
from launch.request.input_config import write_contract

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
        return cls(int(hosts), network == "none", shm_size, gpus_to_use(int(hosts)))

    @property
    def names(self) -> list[str]:
        """The hosts' names in SageMaker's order, which is that of text."""
        return sorted(f"algo-{number}" for number in range(1, self.hosts + 1))

    def gpus_of(self, host: str) -> list[str]:
        """This host's share of the GPUs: each has as many, and no two the same one."""
        share = len(self.gpus) // self.hosts
        first = self.names.index(host) * share
        return self.gpus[first : first + share]


def gpus_to_use(hosts: int) -> list[str]:
    """Indices of the GPUs to share out; raises ContainerError where some hosts would get none."""
    present, wanted = gpus_present(), os.environ.get("GPUS") or "all"
    if wanted != "all" and not (wanted.isdecimal() and int(wanted) <= len(present)):
        raise ContainerError(f"GPUS={wanted}: use a number from 0 to {len(present)}, or leave it")
    gpus = present if wanted == "all" else present[: int(wanted)]
    if 0 < len(gpus) < hosts:
        # Hosts with and without a GPU cannot train together.
        raise ContainerError(
            f"HOSTS={hosts} needs {hosts} GPUs, {len(gpus)} here: GPUS=0 trains on the CPU"
        )
    return gpus


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


def check_names(engine: Engine, network: str) -> None:
    """Raises ContainerError where hosts on the network could not find each other."""
    form = ("network", "inspect", "--format", "{{.DNSEnabled}}", network)
    if engine.is_podman and engine.call(*form) == "false":
        raise ContainerError(
            "podman's networks resolve no names here, so that hosts would look for each other for "
            "ever: install netavark and aardvark-dns, or use docker"
        )


def train(arguments: Sequence[str]) -> int:
    """Run the job to its end; returns its exit code.

    Raises ContainerError or RunFolderError before it starts.
    """
    settings = Settings.from_environment()
    engine, image = find_engine(), local_reference()
    if engine.image(image) is None:
        raise ContainerError(f"there is no image {image}: run `make image` first")
    try:
        name, rest = split_name(arguments)
    except ValueError as error:
        raise ContainerError(str(error)) from error
    channels, overrides = split_channels(rest)
    if processes := os.environ.get("NPROC"):
        overrides.append(f"trainer.nproc_per_host={processes}")
    run = run_folder(name)
    RunFolder(run).ensure_idle()
    point_latest_at(run)
    hosts = settings.names
    for host in hosts:
        folder = host_folder(run, host, hosts[0])
        write_contract(folder, overrides, hosts=hosts, current=host, channels=sorted(channels))
    with Containers(engine, f"{run.name}-{os.getpid()}", STOP_SECONDS) as containers:
        say(f"{image} on {len(hosts)} host(s); /opt/ml is {run}")
        alone = settings.isolated and len(hosts) == 1
        network = None if alone else containers.create_network(settings.isolated)
        if network and len(hosts) > 1:
            check_names(engine, network)
        for host in hosts:
            containers.create(
                host,
                f"--hostname={host}",
                f"--shm-size={settings.shm_size}",
                *network_options(network, host),
                *mounts(host_folder(run, host, hosts[0]), run, channels),
                *gpu_options(engine, settings.gpus_of(host)),
                *owner_options(engine),
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
    except (ContainerError, RunFolderError) as error:
        sys.stderr.write(f"docker-train: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("docker-train: stopped before the job started\n")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
