"""The hosts of a job: SageMaker's file names them, other launchers describe them in variables.

A host is a machine, a container or a pod that runs the command `train` once. This command starts
the ranks, so a launcher's WORLD_SIZE and RANK count hosts, and only those of `entry_point.train`
count ranks.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from entry_point.job.run_folder import ContractError, read_json

DNS_PATIENCE_S = 300.0
MASTER_PORT = 29400
"""Default of the port at which the hosts meet."""

TORCH = ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT")
"""Number of hosts, number of this host, address of the first, port; as PyTorchJob sets them."""
TORCHRUN = ("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")
"""The same, by torchrun's names."""


@dataclass(frozen=True)
class Hosts:
    """This host's place among the job's hosts."""

    rank: int = 0
    count: int = 1
    names: tuple[str, ...] = ("localhost",)
    """Names or addresses of all hosts on SageMaker, elsewhere only of the first."""
    port: int = MASTER_PORT
    """Port on which the first host listens."""
    interface: str | None = None


def read_hosts(folder: Path) -> Hosts:
    """Returns the job's hosts. Raises ContractError.

    Reads the first of these that exists: resourceconfig.json in `folder`, the variables of
    torchrun, those of `torch.distributed`. Without any, this is the only host.
    """
    path = folder / "resourceconfig.json"
    if content := read_json(path):
        names, current = tuple(content.get("hosts", ())), content.get("current_host")
        if not isinstance(current, str) or current not in names:
            raise ContractError(
                f"{path}: current_host {current!r} is not among hosts {list(names)}"
            )
        # The platform sorts the list as text: algo-10 before algo-2.
        interface = content.get("network_interface_name")
        return Hosts(names.index(current), len(names), names, interface=interface)
    return _torch_hosts(*(TORCHRUN if TORCHRUN[0] in os.environ else TORCH))


def _torch_hosts(size: str, rank: str, address: str, port: str) -> Hosts:
    """Returns the hosts from variables with these names."""
    if local := os.environ.get("LOCAL_RANK"):
        raise ContractError(
            f"LOCAL_RANK={local}: this program starts the ranks of its host itself; start it once "
            "per host, without torchrun, or let torchrun start `-m entry_point.train`"
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
    first = _value(address, f"the name or address of the host with {rank}=0")
    return Hosts(number, count, (first,), rendezvous_port)


def _number(
    name: str, meaning: str, least: int = 0, most: int | None = None, default: int | None = None
) -> int:
    """Returns the number in a variable; `default` if it is not set or empty. Raises
    ContractError."""
    text = _value(name, meaning, "" if default is None else str(default))
    if text.isascii() and text.isdigit():
        value = int(text)
        if value >= least and (most is None or value <= most):
            return value
    raise ContractError(f"{name}={text}: must be {meaning}; correct what starts this job")


def _value(name: str, meaning: str, default: str = "") -> str:
    """Returns the value of a variable, with references to others such as
    `$AWS_BATCH_JOB_NUM_NODES` replaced, or the default. Raises ContractError without either."""
    if text := os.path.expandvars(os.environ.get(name, "")) or default:
        return text
    raise ContractError(f"{name}: is not set; set it to {meaning}")


def wait_for_names(hosts: Hosts, patience: float = DNS_PATIENCE_S) -> None:
    """Wait until the names of all hosts resolve: DNS may lag behind. Raises ContractError."""
    deadline = time.monotonic() + patience
    for name in hosts.names if hosts.count > 1 else ():
        if not _resolves(name):
            sys.stderr.write(f"train: waiting for the address of host {name}\n")
        while not _resolves(name):
            if time.monotonic() > deadline:
                raise ContractError(f"host {name}: has no address after {patience:.0f} s")
            time.sleep(1)


def _resolves(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None))
    except OSError:
        return False
