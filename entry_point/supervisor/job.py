"""The training job on one host: the trainer's processes, and what the platform is told of them.

Reads the platform's JSON files, turns hyperparameters into Hydra overrides, starts the trainer
(one process, or one `torchrun` per host), passes a request to stop on to it, and leaves the
reason of a failure where the platform looks for it. It imports no torch, so that it stays small.
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
# The platform kills 120 s after it asked to stop; the ranks get most of that.
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


def training_command(config: TrainConfig, hosts: Hosts, overrides: Sequence[str]) -> list[str]:
    """The trainer alone, or under torchrun where there is more than one rank."""
    ranks = ranks_on_this_host(config)
    world_size = ranks * len(hosts.names)
    check_ranks(config.trainer, world_size)
    module = ["entry_point.train", *overrides]
    if world_size == 1:
        return [sys.executable, "-m", *module]
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
    return [*torchrun, *rendezvous, "--max-restarts=0", "-m", *module]


def child_environment(hosts: Hosts, run: RunFolder, folder: Path) -> dict[str, str]:
    """The trainer's environment: the run folder, the hand-over folder, the network to use."""
    environment = {
        **os.environ,
        "ML_ROOT": str(run.root),
        hand_over.FOLDER: str(folder),
    }
    # OpenMP's idle threads spin by default, and take the cores from those that decode: on two
    # busy cores a training step then needs four times the processor time.
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    interfaces = {name for _, name in socket.if_nameindex()}
    if len(hosts.names) > 1 and hosts.interface in interfaces:
        environment.setdefault("NCCL_SOCKET_IFNAME", hosts.interface or "")
        environment.setdefault("GLOO_SOCKET_IFNAME", hosts.interface or "")
    return environment


class Job:
    """The trainer's process tree, and the signals that reach this process meanwhile."""

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path) -> None:
        self._folder = folder
        self._stopping_since: float | None = None
        self.killed = False
        """Whether it was asked to stop and did not get or take the time to."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        # In a session of its own, so that Ctrl-C comes here alone and is passed on once.
        self._process = subprocess.Popen(
            command,
            env=environment,
            start_new_session=True,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._stopping_since is None:
            self._stopping_since = time.monotonic()
            hand_over.ask_to_stop(self._folder)
        else:
            self._kill()  # asked twice: at once

    def _kill(self) -> None:
        if self._process.poll() is None:
            self.killed = True
            os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self) -> int:
        """The trainer's return code. One that does not stop in time is killed."""
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
    overrides = [*read_overrides(run.contract), *extra]
    hosts = read_hosts(run.contract)
    check_channels(run)
    config, _ = load_train_config(overrides)
    command = training_command(config, hosts, overrides)
    with tempfile.TemporaryDirectory(prefix="train-") as name:
        folder = Path(name)
        wait_for_names(hosts)
        job = Job(command, child_environment(hosts, run, folder), folder)
        code = job.wait()
        reported = hand_over.read_exit_code(folder)
    if reported is not None:
        return reported
    write_failure(run.failure, _death(code, job.killed))
    return exit_codes.FAILED


def _death(code: int, killed: bool) -> str:
    """What to say of a trainer that could not say it itself."""
    if killed:
        return (
            "the job was asked to stop, and was killed before it had: asked once more, or not done "
            f"within {STOP_PATIENCE_S:.0f} s; it goes on from its last checkpoint"
        )
    if code >= 0:
        return f"the trainer ended with exit code {code} and left no reason; see the log"
    name = signal.Signals(-code).name
    hint = "; the host may have run out of memory" if -code == signal.SIGKILL else ""
    return f"the trainer was killed by {name}{hint}"


def main(overrides: Sequence[str]) -> int:
    """Run the job; leave the reason of a failure where the platform looks for it."""
    return run_program("train", partial(train, overrides), leave_failure)
