"""The training job on one host: its processes, and what the platform learns about them.

Reads the platform's JSON files, turns hyperparameters into Hydra overrides, composes the
configuration, starts the ranks (one process, or one `torchrun` per host), passes a stop request on
to them, and leaves the reason of a failure where the platform looks for it. It imports no torch,
which keeps this process small.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

from entry_point.config.train_config import TrainConfig, load_train_config
from entry_point.contract import exit_codes
from entry_point.contract.failure import failure_file
from entry_point.contract.hosts import TORCH, Hosts, read_hosts, wait_for_names
from entry_point.contract.lasting_output import make_output_last
from entry_point.contract.platform_files import check_channels, forget_credentials, read_overrides
from entry_point.contract.program import run_program
from entry_point.contract.run_folder import RunFolder
from entry_point.contract.temporary_folder import temporary_folder
from entry_point.supervisor import hand_over
from entry_point.supervisor.cuda_driver import usable_gpus
from entry_point.supervisor.rank_processes import STOP_PATIENCE_S, RankProcesses

LOOPBACK = "lo"


def ranks_on_this_host(config: TrainConfig) -> int:
    """`trainer.nproc_per_host`, else one rank per GPU this process may use, else one."""
    if config.trainer.nproc_per_host is not None:
        return config.trainer.nproc_per_host
    return 1 if config.trainer.device == "cpu" else max(1, usable_gpus())


def training_command(config: TrainConfig, hosts: Hosts) -> list[str]:
    """The command of a single rank, or of torchrun for more than one.

    Hosts of several instance groups may have different numbers of ranks: torchrun counts them all.
    """
    ranks = ranks_on_this_host(config)
    if ranks == hosts.count == 1:
        return [sys.executable, "-m", "entry_point.train"]
    rendezvous = (
        # Without the address torchrun resolves the host's own name, which an isolated host cannot.
        ["--standalone", "--local-addr=127.0.0.1"]
        if hosts.count == 1
        else [
            f"--nnodes={hosts.count}",
            f"--node-rank={hosts.rank}",
            f"--master-addr={hosts.names[0]}",
            f"--master-port={hosts.port}",
        ]
    )
    torchrun = [sys.executable, "-m", "entry_point.supervisor.ranks", f"--nproc-per-node={ranks}"]
    return [*torchrun, *rendezvous, "--max-restarts=0", "-m", "entry_point.train"]


def rank_environment(hosts: Hosts, run: RunFolder, folder: Path) -> dict[str, str]:
    """The ranks' environment: the run folder, the hand-over `folder`, the network interface."""
    environment = {
        # A rank would take the number of hosts for that of ranks, and torchrun reads PET_*.
        **{
            name: value
            for name, value in os.environ.items()
            if name not in TORCH and not name.startswith("PET_")
        },
        "ML_ROOT": str(run.root),
        hand_over.FOLDER: str(folder),
        hand_over.PARENT: str(os.getpid()),
        # Else torchrun makes a folder that a kill leaves behind.
        "PET_LOG_DIR": str(folder / "torchrun"),
    }
    # OpenMP's idle threads spin by default and take the cores from the decoding threads: on two
    # busy cores a training step then needs four times the processor time.
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    interface = hosts.interface if hosts.count > 1 else LOOPBACK
    if interface in {name for _, name in socket.if_nameindex()}:
        environment.setdefault("NCCL_SOCKET_IFNAME", interface)
        environment.setdefault("GLOO_SOCKET_IFNAME", interface)
    return environment


def run_alone(extra: Sequence[str]) -> int:
    """Run the job while no other runs in its folder; returns the exit code."""
    run = RunFolder.from_environment()
    with run.hold(run.lock) as lock, failure_file(run.failure) as leave_reason:
        return run_program("train", partial(train, run, lock, leave_reason, extra), leave_reason)


def train(
    run: RunFolder, lock: BinaryIO, leave_reason: Callable[[str], bool], extra: Sequence[str]
) -> int:
    """Run the job; returns the exit code. A reason that the ranks report is left, not raised."""
    read = read_overrides(run.platform_config)
    forget_credentials(run.platform_config, read)
    overrides = [*read, *extra]
    hosts = read_hosts(run.platform_config)
    check_channels(run)
    config, yaml = load_train_config(overrides)
    command = training_command(config, hosts)
    wait_for_names(hosts)
    with temporary_folder() as folder:
        hand_over.write_config(folder, yaml)
        processes = RankProcesses(command, rank_environment(hosts, run, folder), folder, lock)
        code = processes.wait()
        death = hand_over.read_death(folder)
        reported, reason = hand_over.read_exit_code(folder), hand_over.read_reason(folder)
        if reported is None and processes.stopped_before_first_step:
            sys.stderr.write("train: stopped before the first step, with nothing to save\n")
            return exit_codes.STOPPED
    if reported is None or death:
        reason = _killed() if processes.killed else _died(*(death or ("training", -code)))
        sys.stderr.write(f"train: {reason}\n")
    if reason:
        leave_reason(reason)
    return exit_codes.FAILED if reported is None else reported


def _killed() -> str:
    """The reason for ranks that were killed because they did not stop."""
    return (
        "the job was asked to stop and then killed: it was asked twice, or took longer than "
        f"{STOP_PATIENCE_S:.0f} s; the same command resumes from the last checkpoint"
    )


def _died(what: str, number: int) -> str:
    """The reason for a process that ended by the signal `number`, or with the exit code -number."""
    if number <= 0:
        return f"{what} ended with exit code {-number} and gave no reason; see the log"
    hint = "; the host may have run out of memory" if number == signal.SIGKILL else ""
    return f"{what} was killed by {signal.Signals(number).name}{hint}"


def main(overrides: Sequence[str]) -> int:
    """Command line: Hydra overrides, which win over the platform's hyperparameters."""
    make_output_last()
    return run_program("train", partial(run_alone, overrides))
