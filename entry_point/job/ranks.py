"""Starts the ranks of this host, passes a request to stop on to them, and ends them together.

A rank is a process as torchrun starts it: it reads its place from torchrun's variables, SIGTERM
asks it to stop, its exit code is one of `ExitCode`, and the reason of a failure is in
`output/failure` of the run folder. The signal goes to the rank alone, not to the processes that
load its data. Until its first step, a rank does not handle the signal, which then ends it: there is
nothing to save.

torchrun is not used: it imports torch (2 s of CPU, 660 MB), kills ranks 30 s after a request to
stop, whether they have saved a checkpoint or not, and leaves them alive if it is killed itself.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType

from entry_point.job.hosts import TORCH, Hosts
from entry_point.job.program import BEGAN, JOB_BEGAN, NO_FAILURE, ExitCode, stop_signals
from entry_point.job.run_folder import RunFolder

# The platform kills 120 s after its request to stop; the ranks get most of that time.
STOP_PATIENCE_S = 110.0
# A terminal and `timeout make` send one request twice: to this process, and to make, which passes
# it on.
ONE_REQUEST_S = 1.0
_POLL_S = 0.1
_PR_SET_PDEATHSIG = 1
_LOOPBACK = "127.0.0.1"


def run_ranks(command: Sequence[str], count: int, hosts: Hosts, run: RunFolder) -> tuple[int, str]:
    """Run `count` ranks of the job in `run` until the last has ended.

    Returns the exit code of this host, and the reason of a failure that no rank could report.
    """
    with _kept_port() as port:
        variables = rank_variables(hosts, count, port.getsockname()[1], run.root)
        ranks = Ranks(command, count, variables)
        ranks.wait()
    return ranks.outcome(reported=run.failure.exists())


def rank_variables(hosts: Hosts, count: int, port: int, run: Path) -> dict[str, str]:
    """Returns the environment of all ranks of this host; ranks of a single host meet at `port`."""
    several = hosts.count > 1
    variables = {
        # Without a launcher's variables, which count hosts.
        **{name: value for name, value in os.environ.items() if name not in TORCH},
        "ML_ROOT": str(run),
        JOB_BEGAN: repr(BEGAN),
        "LOCAL_WORLD_SIZE": str(count),
        "WORLD_SIZE": str(hosts.count * count),
        "GROUP_RANK": str(hosts.rank),
        "GROUP_WORLD_SIZE": str(hosts.count),
        "MASTER_ADDR": hosts.names[0] if several else _LOOPBACK,
        "MASTER_PORT": str(hosts.port if several else port),
    }
    # By default, idle OpenMP threads spin, and take the cores from the decoding threads: on two
    # busy cores, a training step then takes four times the CPU time.
    variables.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if count > 1:
        variables.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    # Ranks of a single host need no network, and the host's name need not resolve.
    interface = hosts.interface if several else "lo"
    if interface in {name for _, name in socket.if_nameindex()}:
        variables.setdefault("NCCL_SOCKET_IFNAME", interface)
        variables.setdefault("GLOO_SOCKET_IFNAME", interface)
    return variables


def _kept_port() -> socket.socket:
    """Returns a socket that keeps a port of this host free until the first rank listens there."""
    port = socket.socket()
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port.bind((_LOOPBACK, 0))
    return port


class Ranks:
    """The processes of the ranks. Signals to this process become requests to stop.

    So does a closed stdout, as by `| head` or a closed terminal.
    """

    def __init__(self, command: Sequence[str], count: int, variables: Mapping[str, str]) -> None:
        """Start them, with `variables` as their environment."""
        self.codes: dict[int, int] = {}
        """Exit codes of ranks that ended by themselves, by local rank; negative for a signal."""
        self._asked_at: float | None = None
        self._asked_again = False
        self._passed_on = False
        self._lost_patience = False
        for number in stop_signals():
            signal.signal(number, self._on_signal)
        self._running = {rank: _start(command, rank, variables) for rank in range(count)}

    def wait(self) -> None:
        """Wait until all ranks have ended. After the first failure, kill the others: they would
        hang."""
        while self._running:
            time.sleep(_POLL_S)
            self._collect()
            if any(code not in NO_FAILURE for code in self.codes.values()):
                self._collect()  # also a rank that failed first but is noticed only now
                self._kill()
            elif self._running:
                self._stop_if_asked()

    def outcome(self, *, reported: bool) -> tuple[int, str]:
        """Returns the result of `run_ranks`. `reported`: a rank has left its reason to fail."""
        codes = self.codes.values()
        if self._asked_at is not None and -signal.SIGTERM in codes:
            sys.stderr.write("train: stopped before the first step, with nothing to save\n")
            return ExitCode.STOPPED, ""
        if self._lost_patience:
            reason = "the job was asked to stop and then killed: it was asked twice, or took longer"
            return ExitCode.FAILED, f"{reason} than {STOP_PATIENCE_S:.0f} s"
        failed = {rank: code for rank, code in self.codes.items() if code not in NO_FAILURE}
        if not failed:
            return ExitCode.STOPPED if ExitCode.STOPPED in codes else ExitCode.FINISHED, ""
        # Other ranks only lost their connection to the one that could not report.
        reporting = (ExitCode.FAILED, ExitCode.USAGE)
        silent = {rank: code for rank, code in failed.items() if code not in reporting}
        if silent or not reported:
            rank, code = next(iter((silent or failed).items()))
            return ExitCode.FAILED, _ended(rank, code)
        return ExitCode.USAGE if ExitCode.USAGE in codes else ExitCode.FAILED, ""

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
            # A closed terminal sends several SIGHUP, from the kernel and the shell.
            self._asked_again = True

    def _stop_if_asked(self) -> None:
        if self._asked_at is None and _output_is_closed():
            sys.stderr.write("train: nobody reads the output any more; stopping\n")
            self._asked_at = time.monotonic()
        if self._asked_at is None:
            return
        if not self._passed_on:
            self._passed_on = True
            for process in self._running.values():
                os.kill(process.pid, signal.SIGTERM)
        if self._asked_again or time.monotonic() - self._asked_at > STOP_PATIENCE_S:
            self._lost_patience = True
            self._kill()

    def _kill(self) -> None:
        """Kill the remaining ranks, and the processes that they have started."""
        for process in self._running.values():
            os.killpg(process.pid, signal.SIGKILL)
        for process in self._running.values():
            process.wait()
        self._running.clear()


def _ended(rank: int, code: int) -> str:
    """Returns how a rank without a reason ended."""
    if code >= 0:
        return f"rank {rank} of this host ended with exit code {code} and gave no reason"
    reason = f"rank {rank} of this host was killed by {signal.Signals(-code).name}"
    if -code != signal.SIGKILL:
        return reason
    return (
        f"{reason}; the host may have run out of memory: lower trainer.batch_size or "
        "pipeline.num_workers, as workers hold batches, too"
    )


def own_variables(variables: Mapping[str, str], local_rank: int) -> dict[str, str]:
    """Returns the environment of one rank: the variables of all ranks of this host, and its
    number."""
    rank = int(variables["GROUP_RANK"]) * int(variables["LOCAL_WORLD_SIZE"]) + local_rank
    return {**variables, "RANK": str(rank), "LOCAL_RANK": str(local_rank)}


def _start(
    command: Sequence[str], local_rank: int, variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env=own_variables(variables, local_rank),
        stdin=subprocess.DEVNULL,
        # In a separate session, ranks do not get a terminal's Ctrl-C.
        start_new_session=True,
        preexec_fn=partial(die_with_parent, os.getpid()),
    )


def _output_is_closed() -> bool:
    """Returns whether stdout is a pipe or terminal whose other end is closed."""
    poll = select.poll()
    poll.register(1, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def die_with_parent(parent: int) -> None:
    """Have Linux kill this process when its parent, process id `parent`, dies or has died already.

    Other systems ignore it.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
