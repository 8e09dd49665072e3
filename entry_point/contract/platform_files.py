"""Reads the files that the platform leaves in `input/config`, and checks that they hold true."""

from __future__ import annotations

import errno
import json
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entry_point.contract import hyperparameters
from entry_point.contract.printable import masked
from entry_point.contract.run_folder import RunFolder
from entry_point.contract.user_error import UserError
from entry_point.contract.whole_file import write_text

DNS_PATIENCE_S = 300.0
LOCAL = "local"
"""The instance type of a job that this machine's launchers start."""


class ContractError(UserError):
    """A platform file is wrong or promises something missing; the message names the file."""


@dataclass(frozen=True)
class Hosts:
    """This host's place among the job's hosts."""

    current: str = "localhost"
    names: tuple[str, ...] = ("localhost",)
    interface: str | None = None

    @property
    def rank(self) -> int:
        """The position in the platform's list, which is sorted as text: algo-10 before algo-2."""
        return self.names.index(self.current)


def read_json(path: Path) -> dict[str, Any]:
    """A file's JSON object; an empty one if there is no file. Raises ContractError."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ContractError(f"{path}: must be JSON ({error})") from error
    if not isinstance(content, dict):
        raise ContractError(f"{path}: must hold a JSON object, not {type(content).__name__}")
    return content


def read_hosts(folder: Path) -> Hosts:
    """The job's hosts from resourceconfig.json; one host if there is no such file."""
    path = folder / "resourceconfig.json"
    content = read_json(path)
    if not content:
        return Hosts()
    names, current = tuple(content.get("hosts", ())), content.get("current_host")
    if not isinstance(current, str) or current not in names:
        raise ContractError(f"{path}: current_host {current!r} is not among hosts {list(names)}")
    return Hosts(current, names, content.get("network_interface_name"))


def read_overrides(folder: Path) -> list[str]:
    """Hydra overrides from hyperparameters.json. Raises ContractError."""
    path = folder / "hyperparameters.json"
    content = {key: str(value) for key, value in read_json(path).items()}
    try:
        return hyperparameters.decode(content)
    except ValueError as error:
        raise ContractError(f"{path}: {error}") from error


def forget_credentials(folder: Path, overrides: Sequence[str]) -> None:
    """Mask credentials in hyperparameters.json once its `overrides` are read.

    Only in a run folder on this machine, which people keep: the platform's file stays as it is.
    """
    kind = read_json(folder / "resourceconfig.json").get("current_instance_type", LOCAL)
    without = masked([*overrides])
    if kind == LOCAL and without != [*overrides]:
        try:
            content = json.dumps(hyperparameters.encode(without), indent=2)
            write_text(folder / "hyperparameters.json", content + "\n")
        except PermissionError:  # mounted read-only: docker-train masks it
            pass
        except OSError as error:
            if error.errno != errno.EROFS:
                raise


def check_channels(run: RunFolder) -> None:
    """Check that every channel in inputdataconfig.json has a folder. Raises ContractError."""
    path = run.platform_config / "inputdataconfig.json"
    for channel in read_json(path):
        if not (run.channels / channel).is_dir():
            raise ContractError(
                f"{path}: channel {channel!r}: must have the folder {run.channels / channel}"
            )


def wait_for_names(hosts: Hosts, patience: float = DNS_PATIENCE_S) -> None:
    """Wait until every host's name resolves: DNS may lag behind the hosts. Raises ContractError."""
    deadline = time.monotonic() + patience
    for name in hosts.names if len(hosts.names) > 1 else ():
        if not _resolves(name):
            sys.stderr.write(f"train: waiting for the address of host {name}\n")
        while not _resolves(name):
            if time.monotonic() > deadline:
                raise ContractError(f"host {name}: has no address after {patience:.0f} s")
            time.sleep(1)


def _resolves(name: str) -> bool:
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return False
    return True
