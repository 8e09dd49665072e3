"""Train in the image on this machine, in containers set up as SageMaker sets them up.

``python -m launch.docker [name=NAME] [channel.NAME=FOLDER] [job.code=true] [Hydra overrides]`` is
``make docker-train``. ``data.root=FOLDER`` becomes the channel ``training``; of a table, its folder
does, and ``data.images=FOLDER`` becomes the channel ``images``. ``job.code=true`` runs the
``project/`` and ``configs/`` of this folder instead of the image's. Environment variables:

HOSTS     number of hosts; default 1
NETWORK   none: no network beyond the job's hosts, as with SageMaker's network isolation
GPUS      number of GPUs; default: all
NPROC     processes per host
SHM_SIZE  size of /dev/shm; default 1g

IMAGE, DEVICE and ENGINE select image and engine as in ``launch.image``.
"""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from entry_point.contract import own_code
from entry_point.contract.platform_files import forget_credentials
from entry_point.contract.run_folder import CONTAINER_ROOT, RunFolder
from entry_point.contract.user_error import UserError
from launch.command_line import LaunchError
from launch.containers.container_run import Containers, say
from launch.containers.engine import Engine, find_engine
from launch.containers.gpus import select_gpus
from launch.containers.image_name import local_reference
from launch.containers.run_options import (
    environment_options,
    gpu_options,
    mounts,
    network_options,
    owner_options,
)
from launch.containers.typed_checks import require_usable
from launch.own_code import OwnCode, require_free_channel, split_code
from launch.request.local_run import (
    create_run_folder,
    point_latest_at,
    split_name,
    write_input_config,
)

IN_CONTAINER = RunFolder(CONTAINER_ROOT).channels
CHANNEL = re.compile(r"channel\.([A-Za-z0-9._-]{1,64})=(.+)")
STOP_SECONDS = 120
MAX_HOSTS = 16
VARIABLES = ("HOSTS", "NETWORK", "GPUS", "NPROC", "SHM_SIZE", "IMAGE", "DEVICE", "ENGINE")


@dataclass(frozen=True)
class Settings:
    """The environment variables of this program, validated; errors name the variable."""

    hosts: int = 1
    isolated: bool = False
    shm_size: str = "1g"
    gpus: list[str] = field(default_factory=list)

    @classmethod
    def from_environment(cls) -> "Settings":
        hosts, network = os.environ.get("HOSTS") or "1", os.environ.get("NETWORK") or ""
        if not hosts.isdecimal() or not 1 <= int(hosts) <= MAX_HOSTS:
            raise LaunchError(f"HOSTS={hosts}: must be a number from 1 to {MAX_HOSTS}")
        if network not in ("", "none"):
            raise LaunchError(f"NETWORK={network}: must be none or unset")
        shm_size = os.environ.get("SHM_SIZE") or "1g"
        return cls(int(hosts), network == "none", shm_size, select_gpus(int(hosts)))

    @property
    def names(self) -> list[str]:
        """Host names in SageMaker's order: sorted as text."""
        return sorted(f"algo-{number}" for number in range(1, self.hosts + 1))

    def gpus_of(self, host: str) -> list[str]:
        """The GPUs of one host: all hosts get the same number, no GPU is shared."""
        share = len(self.gpus) // self.hosts
        first = self.names.index(host) * share
        return self.gpus[first : first + share]


@dataclass(frozen=True)
class Inputs:
    """What a job reads: the folders of its channels, and your own code."""

    folders: dict[str, Path]
    code: OwnCode | None

    @property
    def channels(self) -> list[str]:
        return sorted([*self.folders, *([own_code.CHANNEL] if self.code else [])])

    @property
    def environment(self) -> list[str]:
        return [f"--env={own_code.HASH}={self.code.hash}"] if self.code else []


def split_inputs(arguments: Sequence[str]) -> tuple[Inputs, list[str]]:
    """The job's inputs, and the other arguments; raises LaunchError for one that cannot be read."""
    folders, rest = split_channels(arguments)
    code, overrides = split_code(rest)
    if code:
        require_free_channel(folders, "channel")
        for line in code.left_out:
            say(line)
        say(code.describe())
    return Inputs(folders, code), overrides


def split_channels(arguments: Sequence[str]) -> tuple[dict[str, Path], list[str]]:
    """Folders by channel name, and the other arguments; raises LaunchError for a missing folder."""
    channels: dict[str, Path] = {}
    overrides: list[str] = []
    for argument in arguments:
        match = CHANNEL.fullmatch(argument)
        key, _, value = argument.partition("=")
        if match:
            channels[match[1]] = Path(match[2])
        elif key == "data.root" and Path(value).is_file():  # a table, which lies in its channel
            channels["training"] = Path(value).parent
            overrides.append(f"{key}={IN_CONTAINER / 'training' / Path(value).name}")
        elif key == "data.root" and value not in ("", "null"):
            channels["training"] = Path(value)
        elif key == "data.images" and value not in ("", "null"):
            channels["images"] = Path(value)
            overrides.append(f"{key}={IN_CONTAINER / 'images'}")
        else:
            overrides.append(argument)
    for name, folder in channels.items():
        if not folder.is_dir():
            raise LaunchError(
                f"{folder}: no such folder for the channel {name}; set data.root or channel.NAME "
                "to a folder on this machine"
            )
    return {name: folder.resolve() for name, folder in channels.items()}, overrides


def require_overrides(arguments: Sequence[str]) -> None:
    """Raise LaunchError for an argument that is no override, or that is a variable of make's."""
    for argument in arguments:
        key, equals, _ = argument.partition("=")
        if not equals and not argument.startswith("~"):
            raise LaunchError(f"{argument}: not an override as in key=value")
        if key in VARIABLES:
            raise LaunchError(f"{argument}: set it beside ARGS: make docker-train {argument}")


def host_folder(run: Path, host: str, first: str) -> Path:
    """The ``/opt/ml`` of one host; the run folder itself for the first host, which has rank 0."""
    return run if host == first else run / "hosts" / host


def check_dns(engine: Engine, network: str) -> None:
    """Raise LaunchError if hosts on the network cannot resolve each other's names."""
    command = ("network", "inspect", "--format", "{{.DNSEnabled}}", network)
    if engine.is_podman and engine.call(*command) == "false":
        raise LaunchError(
            "podman's networks do not resolve host names on this machine, so the hosts cannot "
            "find each other: install netavark and aardvark-dns, or use docker"
        )


def create_hosts(
    containers: Containers,
    engine: Engine,
    image: str,
    settings: Settings,
    run: Path,
    inputs: Inputs,
) -> None:
    """Create the container of each host and, unless one isolated host needs none, a network."""
    hosts = settings.names
    alone = settings.isolated and len(hosts) == 1
    network = None if alone else containers.create_network(settings.isolated)
    if network and len(hosts) > 1:
        check_dns(engine, network)
    for host in hosts:
        containers.create(
            host,
            f"--hostname={host}",
            f"--shm-size={settings.shm_size}",
            *network_options(network, host),
            *mounts(host_folder(run, host, hosts[0]), run, inputs.folders),
            *gpu_options(engine, settings.gpus_of(host)),
            *owner_options(engine),
            *environment_options(run),
            *inputs.environment,
            image,
            "train",
        )


def train(arguments: Sequence[str]) -> int:
    """Run the job until it ends; returns its exit code.

    Raises UserError if the job cannot start.
    """
    settings = Settings.from_environment()
    engine, image = find_engine(), local_reference()
    description = engine.image(image)
    if description is None:
        raise LaunchError(f"there is no image {image}: run `make image` first")
    name, rest = split_name(arguments)
    inputs, overrides = split_inputs(rest)
    require_overrides(overrides)
    require_usable(overrides, image, description)
    run = create_run_folder(name)
    folder = RunFolder(run)
    with folder.hold(folder.launch_lock):
        with folder.hold(folder.lock):
            for host in settings.names:
                root = host_folder(run, host, settings.names[0])
                write_input_config(
                    root,
                    overrides,
                    hosts=settings.names,
                    current=host,
                    channels=inputs.channels,
                )
                if inputs.code:
                    inputs.code.write(RunFolder(root).channels)
        point_latest_at(run)
        try:
            return run_containers(engine, image, settings, run, inputs)
        finally:
            for host in settings.names:
                root = host_folder(run, host, settings.names[0])
                forget_credentials(RunFolder(root).platform_config, overrides)


def run_containers(
    engine: Engine, image: str, settings: Settings, run: Path, inputs: Inputs
) -> int:
    """Run the hosts' containers until the job ends; returns its exit code."""
    with Containers(engine, f"{run.name}-{os.getpid()}", STOP_SECONDS) as containers:
        say(f"{image} on {settings.hosts} host(s); /opt/ml is {run}")
        create_hosts(containers, engine, image, settings, run, inputs)
        code = containers.run()
    say(f"exit code {code}; /opt/ml was {run}")
    return code


def main(arguments: Sequence[str]) -> int:
    """The job's exit code; an error before the job starts is one line and exit code 1."""
    try:
        return train(arguments)
    except UserError as error:
        sys.stderr.write(f"docker-train: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("docker-train: stopped before the job started\n")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
