"""The ranks of this host as processes of the supervisor: started, asked to stop, ended, watched.

Supervisor and ranks exchange files in a temporary folder. The supervisor writes `config.yaml`, and
`stop` to ask for a checkpoint and an end: between steps, the ranks look whether it is there. A
signal would also reach the processes that load data. If a model is wanted, too, `export` is there
before `stop`. A rank writes `begun` once it heeds such a request, and `reason` if it fails. It
knows the folder by its command line: what it starts itself must not take part.

Without torchrun, which kills its workers 30 s after a signal, whether they have saved a checkpoint
or not, and takes any exit code but 0 for a failure.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, BinaryIO

from entry_point.job import program
from entry_point.job.hosts import TORCH, Hosts
from entry_point.job.program import NO_FAILURE, stop_signals

if TYPE_CHECKING:  # the supervisor imports no torch
    from torch.distributed import Store  # type: ignore[attr-defined]

logger = logging.getLogger(__name__)

OPTION = "--supervisor"
"""The folder follows; a rank that was started by hand or by torchrun has none."""
_CONFIG, _JOB_BEGAN = "config.yaml", "job_began"
_BEGUN, _STOP, _REASON = "begun", "stop", "reason"
# The platform kills 120 s after its stop request; the ranks get most of that.
STOP_PATIENCE_S = 110.0
# `timeout make` and a terminal send one request to make and to this process, and make passes it on.
ONE_REQUEST_S = 1.0
_POLL_S = 0.1
ANSWER_PATIENCE_S = 30.0
"""How long the other ranks wait for one before a line says so."""
PUBLISH_S = 5.0
"""How often a rank says that it still answers."""
_PR_SET_PDEATHSIG = 1
_LOOPBACK = "lo"


def rank_environment(hosts: Hosts, ranks: int, run: Path) -> dict[str, str]:
    """Returns what all ranks of this host have in common, in the variables of torchrun where it has
    them.

    `run` is the run folder.
    """
    environment = {
        # A rank would take the number of hosts for that of ranks.
        **{name: value for name, value in os.environ.items() if name not in TORCH},
        "ML_ROOT": str(run),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": str(hosts.rank),
        "GROUP_WORLD_SIZE": str(hosts.count),
        "MASTER_ADDR": hosts.names[0],
        "MASTER_PORT": str(hosts.port),
    }
    # OpenMP's idle threads spin by default and take the cores from the decoding threads: on two
    # busy cores a training step then needs four times the processor time.
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if ranks > 1:
        environment.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    interface = hosts.interface if hosts.count > 1 else _LOOPBACK
    if interface in {name for _, name in socket.if_nameindex()}:
        environment.setdefault("NCCL_SOCKET_IFNAME", interface)
        environment.setdefault("GLOO_SOCKET_IFNAME", interface)
    return environment


class Ranks:
    """The ranks' processes; signals to this process become requests to stop.

    So does the end of whoever reads stdout: `| head`, a terminal that was closed.
    """

    def __init__(
        self,
        count: int,
        config_yaml: str,
        environment: Mapping[str, str],
        folder: Path,
        lock: BinaryIO,
    ) -> None:
        """Start `count` ranks with that configuration; `folder`, a new one, is for their files."""
        self._folder = folder
        (folder / _CONFIG).write_text(config_yaml, encoding="utf-8")
        (folder / _JOB_BEGAN).write_text(repr(program.BEGAN))
        self._asked_at: float | None = None
        self._asked_again = False
        self._heeded = False
        self.codes: dict[int, int] = {}
        """Exit codes by local rank, of those that ended by themselves; a signal is negative."""
        self.stopped_before_first_step = False
        """Whether the request came when there was nothing to save, so all were killed."""
        self.killed = False
        """Whether ranks were killed because they had not stopped."""
        for number in stop_signals():
            signal.signal(number, self._on_signal)
        self._running = {rank: _start(rank, environment, folder, lock) for rank in range(count)}

    @property
    def reason(self) -> str | None:
        """Why the first rank to fail did, if any has."""
        path = self._folder / _REASON
        return path.read_text(encoding="utf-8") if path.exists() else None

    def wait(self) -> None:
        """Wait until all ranks have ended. After the first failure, end the others: they hang."""
        while self._running:
            time.sleep(_POLL_S)
            self._collect()
            if any(code not in NO_FAILURE for code in self.codes.values()):
                # One that died before it has ended by now, too.
                self._collect()
                self._kill()
            elif self._running:
                self._stop_if_asked()

    def _collect(self) -> None:
        for rank, process in [*self._running.items()]:
            if (code := process.poll()) is not None:
                self.codes[rank] = code
                del self._running[rank]

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
        elif now - self._asked_at >= ONE_REQUEST_S and number != signal.SIGHUP:
            # One closed terminal sends several SIGHUP, by kernel and shell.
            self._asked_again = True

    def _stop_if_asked(self) -> None:
        if self._asked_at is None and _output_is_closed():
            sys.stderr.write("train: nobody reads the output any more; stopping\n")
            self._asked_at = time.monotonic()
        if self._asked_at is None:
            return
        if not self._heeded:
            self._heeded = True
            self.stopped_before_first_step = not (self._folder / _BEGUN).exists()
            (self._folder / _STOP).touch()
        late = time.monotonic() - self._asked_at > STOP_PATIENCE_S
        if self.stopped_before_first_step or self._asked_again or late:
            self.killed = not self.stopped_before_first_step
            self._kill()

    def _kill(self) -> None:
        """Kill the ranks that are left, and what they have started."""
        for process in self._running.values():
            os.killpg(process.pid, signal.SIGKILL)
        for process in self._running.values():
            process.wait()
        self._running.clear()


def _start(
    rank: int, environment: Mapping[str, str], folder: Path, lock: BinaryIO
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "entry_point.train", OPTION, str(folder)],
        env={**environment, "LOCAL_RANK": str(rank)},
        stdin=subprocess.DEVNULL,
        pass_fds=(lock.fileno(),),  # so the rank holds the lock, too
        # A separate session keeps a terminal's Ctrl-C from the ranks.
        start_new_session=True,
        preexec_fn=partial(die_with_parent, os.getpid()),
    )


def _output_is_closed() -> bool:
    """Returns whether stdout is a pipe or terminal whose other end is closed."""
    poll = select.poll()
    poll.register(1, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def die_with_parent(parent: int) -> None:
    """Have Linux kill this process when its parent, process id `parent`, dies, or has died before.

    It has no effect on other systems.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Supervisor:
    """What a rank knows of its supervisor, and tells it: by the folder that they share."""

    folder: Path | None = None
    """None if no supervisor started this process, but a person or torchrun."""

    @property
    def began(self) -> float:
        """When the job began on this host, as `time.time()`."""
        return float((self.folder / _JOB_BEGAN).read_text()) if self.folder else program.BEGAN

    def config_yaml(self) -> str | None:
        """Returns the checked configuration; None without a supervisor."""
        return (self.folder / _CONFIG).read_text(encoding="utf-8") if self.folder else None

    def wants_stop(self) -> bool:
        """Returns whether it has asked this rank to stop."""
        return self.folder is not None and (self.folder / _STOP).exists()

    def report_begun(self) -> None:
        """Report that this rank has taken a step and heeds a request to stop."""
        if self.folder:
            (self.folder / _BEGUN).touch()

    def report_reason(self, reason: str) -> bool:
        """Report why this rank failed; False if another rank has reported already."""
        if self.folder:
            try:
                path = self.folder / _REASON
                with path.open("x", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(reason)
            except FileExistsError:
                return False
        return True


# -- which rank the others wait for


@dataclass
class _Seen:
    """What a rank published last, and since when each number is the same."""

    reached: int = -1
    beat: int = -1
    place: str = "its process"
    reached_at: float = 0.0
    answered_at: float = 0.0
    reported: bool = False


class RankWatch:
    """One rank's part of the watch. The first rank watches the others, and the second the first.

    A rank that hangs, in a read or in your code, keeps the others in their next exchange until its
    timeout. All ranks take part in the same exchanges in the same order, so each counts those that
    it has reached: who has reached fewer is whom the others wait for. A thread of each rank
    publishes its count, and that the process still answers.
    """

    def __init__(self, store: Store, rank: int, ranks: int) -> None:
        self._store, self._rank = store.clone(), rank
        self._reached, self._beat = 0, 0
        self._place = f"process {os.getpid()} on {socket.gethostname()}"
        watched: Iterable[int] = {0: range(1, ranks), 1: [0]}.get(rank, ())
        now = time.monotonic()
        self._seen = {each: _Seen(reached_at=now, answered_at=now) for each in watched}
        self._highest, self._highest_at = 0, now
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="rank watch", daemon=True).start()

    def arrive(self) -> None:
        """Count an exchange that this rank has reached; the others may wait for it there."""
        self._reached += 1

    def close(self) -> None:
        """End the watch."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._beat += 1
                published = json.dumps([self._reached, self._beat, self._place])
                self._store.set(f"watch/{self._rank}", published)
                for rank, seen in self._seen.items():
                    self._read(rank, seen)
            except RuntimeError:  # the store has gone with the first rank, or with the job
                return
            self._report(time.monotonic())
            self._ended.wait(PUBLISH_S)

    def _read(self, rank: int, seen: _Seen) -> None:
        if not self._store.check([f"watch/{rank}"]):
            return
        reached, beat, seen.place = json.loads(self._store.get(f"watch/{rank}"))
        now = time.monotonic()
        if reached != seen.reached:
            seen.reached, seen.reached_at, seen.reported = reached, now, False
        if beat != seen.beat:
            seen.beat, seen.answered_at = beat, now

    def _report(self, now: float) -> None:
        highest = max([self._reached, *(seen.reached for seen in self._seen.values())])
        if highest != self._highest:
            self._highest, self._highest_at = highest, now
        for rank, seen in self._seen.items():
            waited = min(now - seen.reached_at, now - self._highest_at)
            silent = now - seen.answered_at
            is_behind = seen.reached < highest and waited > ANSWER_PATIENCE_S
            if not seen.reported and (is_behind or silent > ANSWER_PATIENCE_S):
                seen.reported = True
                logger.warning(
                    "rank %d (%s) has not answered for %.0f s, and the other ranks wait for it; "
                    "py-spy dump shows what that process does",
                    *(rank, seen.place, max(silent, waited)),
                )
