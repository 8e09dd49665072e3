"""Ranks in milliseconds: a supervisor's are forked before it runs, and wait for their start.

They are its children, with all that its own way to start them gives them: environment, session,
and death with the supervisor.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib import import_module
from pathlib import Path

from entry_point.job import own_code, ranks
from tests import forkserver

MOST = 3


class ForkedRank:
    """What a supervisor uses of `subprocess.Popen`."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        supervisor = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            ours.close()
            _wait_and_train(theirs, supervisor)
        theirs.close()
        self._orders = ours
        self._code: int | None = None

    def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        message = json.dumps([arguments, dict(environment)]).encode()
        with self._orders:
            self._orders.sendall(len(message).to_bytes(8, "big") + message)

    def poll(self) -> int | None:
        return self._collect(os.WNOHANG)

    def wait(self) -> int | None:
        return self._collect(0)

    def _collect(self, options: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, options)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


def prepare() -> None:
    """Have the supervisor that runs in this process take its ranks from here."""
    waiting = [ForkedRank() for _ in range(MOST)]

    def start(command: Sequence[str], local_rank: int, variables: Mapping[str, str]) -> ForkedRank:
        process = waiting.pop(0)
        process.start(command[1:], ranks.own_variables(variables, local_rank))
        return process

    # Not the one above, if our packages are imported anew.
    import_module("entry_point.job.ranks")._start = start  # type: ignore[attr-defined]


def rank_processes(root: Path) -> dict[int, int]:
    """Local rank -> process id of the ranks that train in `root`, forked or not."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, command = (folder / "comm").read_text(), (folder / "cmdline").read_bytes()
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if name.startswith(_name(str(root))) and command:  # it has none once it is dead
            found[int(name[-2])] = int(folder.name)
        elif f"ML_ROOT={root}".encode() in environment and b"entry_point.train" in command:
            rank = next(each for each in environment if each.startswith(b"LOCAL_RANK="))
            found[int(rank.partition(b"=")[2])] = int(folder.name)
    return found


def _name(root: str) -> str:
    """The kernel's name for the processes, of at most 15 characters; the rank follows."""
    return f"rank-{sha256(root.encode()).hexdigest()[:8]}-"


def _wait_and_train(orders: socket.socket, supervisor: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    length = orders.recv(8, socket.MSG_WAITALL)
    if not length:  # the supervisor has ended, or needs no more ranks
        os._exit(0)
    message = orders.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL)
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ranks.die_with_parent(supervisor)
    arguments, environment = json.loads(message)
    forkserver.take(environment)
    name = _name(os.environ["ML_ROOT"])
    Path("/proc/self/comm").write_text(f"{name}{os.environ['LOCAL_RANK']}")
    if own_code.FOLDER in os.environ:
        forkserver.forget()
    import torch

    torch.set_num_threads(1)
    try:
        forkserver.run(arguments)
    except SystemExit as ended:
        sys.stderr.flush()
        os._exit(int(str(ended.code)))
