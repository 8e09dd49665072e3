"""The command `train`: the job on one host, and its report to the platform.

Composes the configuration from SageMaker's hyperparameters and the command line's overrides, starts
the ranks with it, and writes the reason of a failure where the platform looks for it. This process
does not import torch, and stays small.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from entry_point.job import own_code
from entry_point.job.gpus import usable_gpus
from entry_point.job.hosts import read_hosts, wait_for_names
from entry_point.job.program import ExitCode, drop_unread_output, leave_reason, run_program
from entry_point.job.ranks import run_ranks
from entry_point.job.run_folder import LINK_LATEST, NEW_RUN, RunFolder
from entry_point.job.run_lock import holding
from entry_point.job.whole_file import remove_partial_files, write_text

if TYPE_CHECKING:
    from entry_point.config.train_config import TrainConfig

RANK = ("-m", "entry_point.train", "--config")
"""Python's arguments for a rank; the path of its configuration follows."""


def run_job(overrides: Sequence[str]) -> int:
    """Run the job while no other runs in its folder; returns the exit code.

    The overrides win over SageMaker's hyperparameters.
    """
    drop_unread_output(drop_all=True)
    run = RunFolder.from_environment()
    with holding(run):
        run.failure.unlink(missing_ok=True)
        code = run_program("train", partial(_train, run, overrides), run.failure)
        if code == ExitCode.USAGE and os.environ.get(NEW_RUN) == str(run.root):
            run.remove_refused()
        return code


def _train(run: RunFolder, extra: Sequence[str]) -> int:
    own_code.use_sent(run.channels)
    # Not above: these modules find the configuration files, which may have been sent with the job.
    from entry_point.config.hyperparameters import read_overrides
    from entry_point.config.train_config import load_train_config

    read = read_overrides(run.platform_config)
    hosts = read_hosts(run.platform_config)
    run.check_channels(hosts.count)
    overrides = [*read, *extra]
    config, yaml = load_train_config(overrides, has_channels=run.has_data(overrides))
    wait_for_names(hosts)
    write_text(run.config, yaml)
    command = [sys.executable, *RANK, str(run.config)]
    code, reason = run_ranks(command, ranks_on_this_host(config), hosts, run)
    _conclude(run, code, reason, is_first=hosts.rank == 0)
    return code


def ranks_on_this_host(config: TrainConfig) -> int:
    """Returns `trainer.nproc_per_host`, else the number of GPUs this process may use, else 1."""
    if config.trainer.nproc_per_host is not None:
        return config.trainer.nproc_per_host
    return 1 if config.trainer.device == "cpu" else max(1, usable_gpus())


def _conclude(run: RunFolder, code: int, reason: str, *, is_first: bool) -> None:
    """Write the results of a job whose ranks have ended, for the platform and this machine."""
    if code == ExitCode.STOPPED:
        run.failure.unlink(missing_ok=True)  # written by a rank that lost the others
    elif reason:
        run.failure.unlink(missing_ok=True)
        if any(run.checkpoints.glob("*.pt")):
            reason += f"; {run.resumed_by} resumes from the last checkpoint"
        leave_reason(run.failure, reason)
        sys.stderr.write(f"train: {reason}\n")
    if code != ExitCode.FINISHED:
        # A killed rank may leave partial files, which the platform would upload.
        remove_partial_files(run.model)
    if code == ExitCode.FAILED and is_first:
        run.copy_metrics()  # killed ranks have not copied them
    if code == ExitCode.FINISHED and os.environ.get(LINK_LATEST) == str(run.root):
        run.become_latest()
