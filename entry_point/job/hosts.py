"""The hosts of a job, their GPUs, and the job whose hosts pack or predict a part each.

SageMaker's file names the hosts, other launchers describe them in variables.

A host is a machine, a container or a pod that runs the entry point once. Its supervisor starts the
ranks, so a launcher's WORLD_SIZE and RANK count hosts here, and ranks only in `entry_point.train`.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from entry_point.job.run_folder import CONTAINER_ROOT, SHARDED, ContractError, read_json

DNS_PATIENCE_S = 300.0
MASTER_PORT = 29400
"""Where the hosts meet unless the launcher names another port."""

TORCH = ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT")
"""Number of hosts, number of this host, address of the first, port; as PyTorchJob sets them."""
TORCHRUN = ("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")
"""The same as torchrun reads it."""
LOCAL_RANK = "LOCAL_RANK"
_LOST = re.compile(
    r"gloo/transport|DistNetworkError|failed to pass monitoredBarrier|remote process exited"
)
"""What gloo, torch's store, its barrier and NCCL say when another process is gone."""
_ADDRESS = re.compile(r"\[([0-9a-fA-F.:]+)\]:\d+|\b(\d+\.\d+\.\d+\.\d+)\b")


@dataclass(frozen=True)
class Hosts:
    """This host's place among the job's hosts."""

    rank: int = 0
    count: int = 1
    names: tuple[str, ...] = ("localhost",)
    """Names or addresses: of all hosts on SageMaker, else only of the first."""
    port: int = MASTER_PORT
    """Where the first host listens."""
    interface: str | None = None


def read_hosts(folder: Path) -> Hosts:
    """Returns the job's hosts. Raises ContractError.

    The first that is there counts: resourceconfig.json in `folder`, the variables of torchrun, of
    `torch.distributed`. Without any of them this is the only host.
    """
    path = folder / "resourceconfig.json"
    if content := read_json(path):
        names, current = tuple(content.get("hosts", ())), content.get("current_host")
        if not isinstance(current, str) or current not in names:
            raise ContractError(
                f"{path}: current_host {current!r} is not among hosts {list(names)}"
            )
        # The list is sorted as text: algo-10 before algo-2.
        interface = content.get("network_interface_name")
        return Hosts(names.index(current), len(names), names, interface=interface)
    return _torch_hosts(*(TORCHRUN if TORCHRUN[0] in os.environ else TORCH))


def _torch_hosts(size: str, rank: str, address: str, port: str) -> Hosts:
    """Returns the hosts from variables with these names."""
    if LOCAL_RANK in os.environ:
        raise ContractError(
            f"{LOCAL_RANK}={os.environ[LOCAL_RANK]}: this program starts the ranks of its host "
            "itself; start it once per host, without torchrun, or let torchrun start "
            "`-m entry_point.train`"
        )
    count = _number(size, "the number of hosts", least=1, default=1)
    number = _number(
        rank,
        f"the number of this host, from 0 to {count - 1} as {size} is {count}",
        most=count - 1,
        default=0 if count == 1 else None,
    )
    if count == 1:
        return Hosts()
    rendezvous_port = _number(port, "a TCP port", least=1, most=65535, default=MASTER_PORT)
    return Hosts(number, count, (_first_address(address, f"{rank}=0"),), rendezvous_port)


def _number(
    name: str, meaning: str, least: int = 0, most: int | None = None, default: int | None = None
) -> int:
    """Returns the value of a variable; `default` if it is not set or empty. Raises
    ContractError."""
    text = _value(name) or ("" if default is None else str(default))
    if not text:
        raise ContractError(f"{name}: is not set; set it to {meaning}")
    if text.isascii() and text.isdigit():
        value = int(text)
        if value >= least and (most is None or value <= most):
            return value
    raise ContractError(f"{name}={text}: must be {meaning}; correct what starts this job")


def _first_address(name: str, first: str) -> str:
    if address := _value(name):
        return address
    raise ContractError(
        f"{name}: is not set; set it to the name or address of the host with {first}"
    )


def _value(name: str) -> str:
    """Returns the value of a variable, which may name others, as `$AWS_BATCH_JOB_NUM_NODES`."""
    return os.path.expandvars(os.environ.get(name, ""))


def wait_for_names(hosts: Hosts, patience: float = DNS_PATIENCE_S) -> None:
    """Wait until every host's name resolves: DNS may lag behind the hosts. Raises ContractError."""
    deadline = time.monotonic() + patience
    for name in hosts.names if hosts.count > 1 else ():
        if not _addresses(name):
            sys.stderr.write(f"train: waiting for the address of host {name}\n")
        while not _addresses(name):
            if time.monotonic() > deadline:
                raise ContractError(f"host {name}: has no address after {patience:.0f} s")
            time.sleep(1)


def lost_host(reason: str, hosts: Hosts) -> str:
    """Returns the host that a rank of this one has lost its connection to; empty if `reason` is
    another.

    Its name, else its address, else `another host`.
    """
    if hosts.count == 1 or not _LOST.search(reason):
        return ""
    found = {address for match in _ADDRESS.findall(reason) for address in match if address}
    named = {n: name for n, name in enumerate(hosts.names) if found & _addresses(name)}
    if list(named) == [hosts.rank]:  # a rank of this host, whose own end says more
        return ""
    others = [name for n, name in enumerate(hosts.names) if n != hosts.rank]
    known = [name for n, name in named.items() if n != hosts.rank]
    if len(hosts.names) == hosts.count == 2:
        return others[0]
    return next(iter([*known, *sorted(found)]), "another host")


def _addresses(name: str) -> set[str]:
    """Returns the addresses that a name resolves to; none if it does not resolve."""
    try:
        return {str(each[4][0]) for each in socket.getaddrinfo(name, None)}
    except OSError:
        return set()


# -- the GPUs of this host, as the CUDA driver counts them without torch

_DEVICE_FILES = Path("/dev")
# In a separate process, since a driver that has been initialized stays in memory.
_QUESTION = """
import ctypes
driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
print(count.value)
"""


def has_gpus() -> bool:
    """Returns whether this host has NVIDIA devices that nobody has hidden from this process."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and re.match(r"\s*(-|NoDevFiles|$)", visible):
        return False
    if os.environ.get("NVIDIA_VISIBLE_DEVICES") in ("void", "none"):
        return False
    return any(re.fullmatch(r"nvidia\d+|dxg", path.name) for path in _DEVICE_FILES.iterdir())


def usable_gpus() -> int:
    """Returns the GPUs that a rank of this host can choose from, as CUDA_VISIBLE_DEVICES, the
    container and MIG allow; 0 where the driver does not work."""
    if not has_gpus():
        return 0
    command = [sys.executable, "-I", "-c", _QUESTION]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(asked.stdout or 0)


# -- a Processing job, whose hosts pack or predict a part each


def is_processing(root: Path) -> bool:
    """Returns whether the files of a Processing job are below this root."""
    # Unlike that of pathlib, it is False for a folder that cannot be read.
    return os.path.isfile(root / "config" / "resourceconfig.json")  # noqa: PTH113


@dataclass(frozen=True)
class ProcessingJob:
    """A SageMaker Processing job as its containers see it."""

    root: Path
    """CONTAINER_ROOT, or the folder that ML_ROOT names."""
    hosts: Hosts

    @classmethod
    def here(cls) -> ProcessingJob | None:
        """Returns the job of this container; None outside one. Raises ContractError."""
        root = Path(os.environ.get("ML_ROOT", CONTAINER_ROOT))
        return cls(root, read_hosts(root / "config")) if is_processing(root) else None

    @property
    def input(self) -> Path:
        return self.root / "processing" / "input"

    @property
    def output(self) -> Path:
        return self.root / "processing" / "output"

    def shards_input(self, folder: Path) -> bool:
        """Returns whether `folder` holds only this host's share of the job's input
        (ShardedByS3Key).

        Raises ContractError if the job has several hosts and does not say.
        """
        if self.hosts.count == 1:
            return False
        path = self.root / "config" / "processingjobconfig.json"
        inputs = read_json(path).get("ProcessingInputs")
        if not isinstance(inputs, list):
            raise ContractError(
                f"{path}: must list ProcessingInputs, which say whether each host has all of "
                f"{folder}; set part=N/M"
            )
        from_s3 = [each["S3Input"] for each in inputs if "S3Input" in each]
        return any(
            folder.is_relative_to(each["LocalPath"])
            and each.get("S3DataDistributionType") == SHARDED
            for each in from_s3
        )
