"""The training job on one host: its processes, and what the platform learns about them.

Reads the platform's JSON files, turns hyperparameters into Hydra overrides, composes the
configuration, starts the ranks (one process, or one `torchrun` per host), passes a stop request on
to them, and leaves the reason of a failure where the platform looks for it. It imports no torch,
which keeps this process small.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import FrameType

from entry_point.config.train_config import TrainConfig, check_ranks, load_train_config
from entry_point.contract import exit_codes
from entry_point.contract.failure import leave_failure, write_failure
from entry_point.contract.platform_files import (
    Hosts,
    check_channels,
    read_hosts,
    read_overrides,
    wait_for_names,
)
from entry_point.contract.program import run_program
from entry_point.contract.run_folder import RunFolder
from entry_point.supervisor import hand_over
from entry_point.supervisor.die_with_parent import die_with_parent

MASTER_PORT = 29400
# The platform kills 120 s after its stop request; the ranks get most of that.
STOP_PATIENCE_S = 110.0


def ranks_on_this_host(config: TrainConfig) -> int:
    """`trainer.nproc_per_host`, else one rank per GPU this process may use, else one."""
    if config.trainer.nproc_per_host is not None:
        return config.trainer.nproc_per_host
    if config.trainer.device == "cpu":
        return 1
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return max(1, len([name for name in visible.split(",") if name.strip()]))
    devices = [p for p in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", p.name)]
    return max(1, len(devices))


def training_command(config: TrainConfig, hosts: Hosts) -> list[str]:
    """The command of a single rank, or of torchrun for more than one."""
    ranks = ranks_on_this_host(config)
    world_size = ranks * len(hosts.names)
    check_ranks(config.trainer, world_size)
    if world_size == 1:
        return [sys.executable, "-m", "entry_point.train"]
    rendezvous = (
        ["--standalone"]
        if len(hosts.names) == 1
        else [
            f"--nnodes={len(hosts.names)}",
            f"--node-rank={hosts.rank}",
            f"--master-addr={hosts.names[0]}",
            f"--master-port={MASTER_PORT}",
        ]
    )
    torchrun = [sys.executable, "-m", "entry_point.supervisor.ranks", f"--nproc-per-node={ranks}"]
    return [*torchrun, *rendezvous, "--max-restarts=0", "-m", "entry_point.train"]


def rank_environment(hosts: Hosts, run: RunFolder, folder: Path) -> dict[str, str]:
    """The ranks' environment: the run folder, the hand-over `folder`, the network interface."""
    environment = {**os.environ, "ML_ROOT": str(run.root), hand_over.FOLDER: str(folder)}
    # OpenMP's idle threads spin by default and take the cores from the decoding threads: on two
    # busy cores a training step then needs four times the processor time.
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    interfaces = {name for _, name in socket.if_nameindex()}
    if len(hosts.names) > 1 and hosts.interface in interfaces:
        environment.setdefault("NCCL_SOCKET_IFNAME", hosts.interface or "")
        environment.setdefault("GLOO_SOCKET_IFNAME", hosts.interface or "")
    return environment


class RankProcesses:
    """The ranks' process tree; signals to this process become stop requests to the ranks."""

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path) -> None:
        self._folder = folder
        self._stopping_since: float | None = None
        self.killed = False
        """Whether the ranks were killed because they had not stopped."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        # A separate session keeps a terminal's Ctrl-C from the ranks: it is passed on once.
        self._process = subprocess.Popen(
            command,
            env=environment,
            start_new_session=True,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._stopping_since is None:
            self._stopping_since = time.monotonic()
            hand_over.request_stop(self._folder)
        else:
            self._kill()  # a second request means now

    def _kill(self) -> None:
        if self._process.poll() is None:
            self.killed = True
            os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for the end and return the exit code; kill ranks that do not stop in time."""
        while True:
            try:
                return self._process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                since = self._stopping_since
                if since is not None and time.monotonic() - since > STOP_PATIENCE_S:
                    self._kill()


def train(extra: Sequence[str]) -> int:
    """Run the job; returns the exit code."""
    run = RunFolder.from_environment()
    run.ensure_idle()
    run.failure.unlink(missing_ok=True)
    overrides = [*read_overrides(run.platform_config), *extra]
    hosts = read_hosts(run.platform_config)
    check_channels(run)
    config, yaml = load_train_config(overrides)
    command = training_command(config, hosts)
    with tempfile.TemporaryDirectory(prefix="train-") as name:
        folder = Path(name)
        hand_over.write_config(folder, yaml)
        wait_for_names(hosts)
        processes = RankProcesses(command, rank_environment(hosts, run, folder), folder)
        code = processes.wait()
        reported = hand_over.read_exit_code(folder)
    if reported is not None:
        return reported
    reason = _death(code, processes.killed)
    if write_failure(run.failure, reason):
        sys.stderr.write(f"train: {reason}\n")
    return exit_codes.FAILED


def _death(code: int, killed: bool) -> str:
    """The reason for ranks that ended without reporting one."""
    if killed:
        return (
            "the job was asked to stop and then killed: it was asked twice, or took longer than "
            f"{STOP_PATIENCE_S:.0f} s; the same command resumes from the last checkpoint"
        )
    if code >= 0:
        return f"training ended with exit code {code} and gave no reason; see the log"
    name = signal.Signals(-code).name
    hint = "; the host may have run out of memory" if -code == signal.SIGKILL else ""
    return f"training was killed by {name}{hint}"


def main(overrides: Sequence[str]) -> int:
    """Command line: Hydra overrides, which win over the platform's hyperparameters."""
    return run_program("train", partial(train, overrides), leave_failure)
