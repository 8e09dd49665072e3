"""The training job on one host: its configuration, its ranks, and what the platform learns of them.

Composes the configuration of SageMaker's hyperparameters and the command line's overrides, starts
the ranks and waits for them, and leaves the reason of a failure where the platform looks for it. It
imports no torch, which keeps this process small.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, BinaryIO

from entry_point.job import own_code
from entry_point.job.hosts import Hosts, lost_host, read_hosts, usable_gpus, wait_for_names
from entry_point.job.program import (
    NO_FAILURE,
    ExitCode,
    drop_unread_output,
    failure_file,
    run_program,
)
from entry_point.job.ranks import STOP_PATIENCE_S, Ranks, rank_environment
from entry_point.job.run_folder import LINK_LATEST, NEW_RUN, RunFolder
from entry_point.job.whole_file import remove_partial_files

if TYPE_CHECKING:
    from entry_point.config.train_config import TrainConfig


def run_job(overrides: Sequence[str]) -> int:
    """Run the job while no other runs in its folder; returns the exit code.

    The overrides win over SageMaker's hyperparameters.
    """
    drop_unread_output()
    run = RunFolder.from_environment()
    with run.hold() as lock:
        job = Job(run, lock, failure_file(run.failure))
        code = run_program("train", partial(job.train, overrides), job.leave_reason)
        if code == ExitCode.USAGE and os.environ.get(NEW_RUN) == str(run.root):
            run.remove_refused()
        return code


@dataclass(frozen=True)
class Job:
    """The job on this host. The caller holds the run's lock."""

    run: RunFolder
    lock: BinaryIO
    """The lock's open file."""
    leave_reason: Callable[[str], bool]
    """Keeps the reason of a failure where the platform looks for it."""

    def train(self, extra: Sequence[str]) -> int:
        """Run the job; returns the exit code. A reason that a rank reports is left, not raised."""
        run = self.run
        own_code.use_sent(run.channels)
        # Not above: they find the config tree, which may be the one that was sent.
        from entry_point.config.hyperparameters import read_overrides
        from entry_point.config.train_config import load_train_config

        read = read_overrides(run.platform_config)
        hosts = read_hosts(run.platform_config)
        run.check_channels(hosts.count)
        config, yaml = load_train_config([*read, *extra], has_channels=run.has_data)
        count = ranks_on_this_host(config)
        wait_for_names(hosts)
        with TemporaryDirectory(ignore_cleanup_errors=True) as name:
            environment = rank_environment(hosts, count, run.root)
            ranks = Ranks(count, yaml, environment, Path(name), self.lock)
            ranks.wait()
            code = self._conclude(ranks, hosts, config.trainer.batch_size)
        if code == ExitCode.FINISHED and os.environ.get(LINK_LATEST) == str(run.root):
            run.become_latest()
        return code

    def _conclude(self, ranks: Ranks, hosts: Hosts, batch_size: int) -> int:
        """Returns the exit code of the job whose ranks have ended; leaves the reason of a
        failure."""
        codes = ranks.codes.values()
        if ranks.stopped_before_first_step:
            sys.stderr.write("train: stopped before the first step, with nothing to save\n")
            return ExitCode.STOPPED
        failed = {rank: c for rank, c in ranks.codes.items() if c not in NO_FAILURE}
        if not failed and not ranks.killed:
            return ExitCode.STOPPED if ExitCode.STOPPED in codes else ExitCode.FINISHED
        # What a killed rank was writing: the platform would upload it.
        remove_partial_files(self.run.model)
        if ranks.killed:
            reason: str | None = (
                "the job was asked to stop and then killed: it was asked twice, or took longer "
                f"than {STOP_PATIENCE_S:.0f} s; {self.run.resumed_by} resumes from the last "
                "checkpoint"
            )
        else:
            reason = _died(failed, ranks.reason, hosts, batch_size)
        if reason is not None:
            sys.stderr.write(f"train: {reason}\n")
        self.leave_reason(reason or ranks.reason or "")
        if ExitCode.USAGE in codes:
            return ExitCode.USAGE
        if hosts.rank == 0:
            self.run.copy_metrics()  # a rank that was killed has not
        return ExitCode.FAILED


def ranks_on_this_host(config: TrainConfig) -> int:
    """`trainer.nproc_per_host`, else one rank per GPU this process may use, else one."""
    if config.trainer.nproc_per_host is not None:
        return config.trainer.nproc_per_host
    return 1 if config.trainer.device == "cpu" else max(1, usable_gpus())


def _died(
    failed: dict[int, int], reported: str | None, hosts: Hosts, batch_size: int
) -> str | None:
    """Returns the reason for failed ranks, by local rank; None if the `reported` one is the true
    one.

    A rank that a signal killed could not report: the others only lost their connections to it. So
    does every rank if another host is gone.
    """
    for rank, code in failed.items():
        if code < 0:
            reason = f"rank {rank} of this host was killed by {signal.Signals(-code).name}"
            if code == -signal.SIGKILL:
                reason += (
                    f"; if memory ran out, lower trainer.batch_size={batch_size} or "
                    "pipeline.num_workers, as workers hold batches, too"
                )
            return reason
    if reported is not None:
        if host := lost_host(reported, hosts):
            return (
                f"host {host} ended first, or its network did: this host has lost its connection "
                f"to it; the reason is in the log of {host}"
            )
        return None
    rank, code = next(iter(failed.items()))
    return f"rank {rank} of this host ended with exit code {code} and gave no reason; see the log"
