"""Train an image classifier: `python -m entry_point.train [Hydra overrides]`.

Reads the configuration (`configs/train.yaml`), trains in the run folder (`ML_ROOT` or /opt/ml)
and leaves model, metrics and plots there. Under torchrun every rank runs this. Ends with one of
`entry_point.contract.exit_codes`.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import load_train_config
from entry_point.contract import exit_codes
from entry_point.contract.failure import failure_text, write_failure
from entry_point.contract.run_folder import RunBusyError, RunFolder, RunFolderError
from entry_point.data.errors import DataError
from entry_point.supervisor import hand_over
from entry_point.supervisor.die_with_parent import die_with_parent
from entry_point.training.checkpoints.run_lock import run_lock
from entry_point.training.devices import join_devices
from entry_point.training.trainer import run_training

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Command line: Hydra overrides."""
    under_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    if under_torchrun:
        die_with_parent(os.getppid())
    code = train_or_explain(arguments)
    hand_over.end_with(code)
    # torchrun takes anything but 0 for a failure; the container asks what was handed over.
    well = under_torchrun and code == exit_codes.STOPPED
    return exit_codes.FINISHED if well else code


def train_or_explain(arguments: Sequence[str]) -> int:
    """Run this rank; leave the reason of a failure where the platform looks for it."""
    try:
        run = RunFolder.from_environment()
    except RunFolderError as error:
        sys.stderr.write(f"train: {error}\n")
        return exit_codes.USAGE
    try:
        if hand_over.FOLDER not in os.environ:  # else the container's duty
            run.refuse_company()
            run.failure.unlink(missing_ok=True)  # an earlier run's
        config, yaml = load_train_config(arguments)
        with join_devices(config.trainer) as devices, run_lock(run, devices):
            return run_training(config, yaml, run, devices)
    except RunBusyError as error:  # `failure` would be taken for the other's
        sys.stderr.write(f"train: {error}\n")
        return exit_codes.USAGE
    except (ConfigError, DataError) as error:
        if write_failure(run.failure, str(error)):  # the ranks of a host say it once
            sys.stderr.write(f"train: {error}\n")
        return exit_codes.USAGE
    except Exception as error:
        write_failure(run.failure, failure_text(error))
        logger.exception("training failed")
        return exit_codes.FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
