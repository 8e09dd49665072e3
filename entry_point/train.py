"""Train an image classifier: `python -m entry_point.train [Hydra overrides]`.

Composes the configuration (`configs/train.yaml`), trains in the run folder (`ML_ROOT` or /opt/ml)
and leaves model, metrics and plots there. The supervisor runs this once per rank, and hands it the
configuration. Ends with one of `entry_point.job.program.ExitCode`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from entry_point.config.compose import load_resolved
from entry_point.config.train_config import TrainConfig, load_train_config
from entry_point.job.program import drop_unread_output, end_process, failure_file, run_program
from entry_point.job.ranks import OPTION, Supervisor
from entry_point.job.run_folder import RunFolder


def main(arguments: Sequence[str]) -> int:
    """Command line: Hydra overrides; of a supervisor, the folder that it shares with its ranks."""
    drop_unread_output()
    if arguments[:1] != [OPTION]:
        return run_program("train", partial(train_by_hand, arguments))
    supervisor, again = Supervisor(Path(arguments[1])), RunFolder.from_environment()
    work = partial(train, [], supervisor)
    return run_program("train", work, supervisor.report_reason, lambda: again.resumed_by)


def train_by_hand(arguments: Sequence[str]) -> int:
    """Run this rank without a supervisor; returns its exit code. The first holds the run folder."""
    if os.environ.get("RANK", "0") != "0":
        return train(arguments, Supervisor())
    run = RunFolder.from_environment()
    with run.hold():
        return run_program(
            "train", partial(train, arguments, Supervisor()), failure_file(run.failure)
        )


def train(arguments: Sequence[str], supervisor: Supervisor) -> int:
    """Run this rank; returns its exit code."""
    if yaml := supervisor.config_yaml():
        config = load_resolved(yaml, TrainConfig)
    else:
        has_data = RunFolder.from_environment().has_data
        config, _ = load_train_config(arguments, has_channels=has_data)
    # Not above: processes that it spawns for reading import this file, but need no trainer.
    from entry_point.job.devices import join_devices
    from entry_point.training.expected_pixels import with_expected_pixels
    from entry_point.training.named_parts import require_named_parts
    from entry_point.training.results.log import log_to_stdout
    from entry_point.training.resume import with_recorded_split
    from entry_point.training.trainer import run_training

    run = RunFolder.from_environment()
    # Before the ranks have met: your own code may warn when it is imported.
    places = ("RANK", "GROUP_RANK", "LOCAL_RANK")
    log_to_stdout(all(os.environ.get(place, "0") == "0" for place in places))
    require_named_parts(config, run.channels)
    with join_devices(config.trainer, config.optim.accumulate, supervisor) as devices:
        config = with_recorded_split(config, run.checkpoints, devices)
        config = with_expected_pixels(config, run, devices)
        return run_training(config, run, devices)


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
