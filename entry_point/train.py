"""One rank of a training job, started by the command `train` or by your own torchrun:
`python -m entry_point.train [Hydra overrides]`, or `--config FILE` with the whole configuration, as
in a model folder.

torchrun's variables define its rank, and `ML_ROOT` (else /opt/ml) the run folder, in which it
writes model, metrics and plots. Ends with one of `entry_point.job.program.ExitCode`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from entry_point.config.compose import load_resolved
from entry_point.config.train_config import TrainConfig, check_ranks, load_train_config
from entry_point.job.program import JOB_BEGAN, drop_unread_output, end_process, run_program
from entry_point.job.run_folder import RunFolder
from entry_point.job.run_lock import holding


def main(arguments: Sequence[str]) -> int:
    """Run this rank; returns its exit code."""
    drop_unread_output(drop_all=True)
    return run_program("train", partial(_run, arguments))


def _run(arguments: Sequence[str]) -> int:
    """Train while holding the lock of the run folder, unless the command `train` holds it."""
    run = RunFolder.from_environment()
    by_hand = JOB_BEGAN not in os.environ and os.environ.get("RANK", "0") == "0"
    with holding(run) if by_hand else nullcontext():
        if by_hand:
            run.failure.unlink(missing_ok=True)
        work = partial(train, arguments, run)
        return run_program("train", work, run.failure, lambda: run.resumed_by)


def train(arguments: Sequence[str], run: RunFolder) -> int:
    """Train; returns the exit code."""
    config = _configuration(arguments, run)
    # Not above: spawned data workers import this file, but need no trainer.
    from entry_point.job.devices import join_devices
    from entry_point.training.expected_pixels import with_expected_pixels
    from entry_point.training.named_parts import require_named_parts
    from entry_point.training.results.log import log_to_stdout
    from entry_point.training.resume import with_recorded_split
    from entry_point.training.trainer import run_training

    # Before the ranks have joined, because your own code may log warnings when it is imported.
    log_to_stdout(os.environ.get("RANK", "0") == "0")
    require_named_parts(config, run.channels)
    check_ranks(config.trainer, int(os.environ.get("WORLD_SIZE", "1")), config.optim.accumulate)
    with join_devices(config.trainer) as devices:
        config = with_recorded_split(config, run.checkpoints, devices)
        config = with_expected_pixels(config, run, devices)
        return run_training(config, run, devices)


def _configuration(arguments: Sequence[str], run: RunFolder) -> TrainConfig:
    if arguments[:1] == ["--config"]:
        return load_resolved(Path(arguments[1]).read_text(encoding="utf-8"), TrainConfig)
    return load_train_config(arguments, has_channels=run.has_data(arguments))[0]


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
