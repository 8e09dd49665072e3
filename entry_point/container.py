"""The image's entry point: `python -m entry_point.container COMMAND [Hydra overrides]`.

SageMaker runs the commands `train` and `serve`. Every command also runs outside a container:
`ML_ROOT` names another run folder than /opt/ml.

This module handles SIGTERM before it imports the command's program: the kernel drops a signal that
a container's first process does not handle.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType

from entry_point.contract import exit_codes, own_code
from entry_point.contract.stop_signals import exit_on_stop
from entry_point.supervisor import hand_over

PROGRAMS = {
    "train": "entry_point.supervisor.job",
    "optimize": "entry_point.optimize",
    "predict": "entry_point.predict",
    "serve": "entry_point.serve",
    "check-dataset": "entry_point.check_dataset",
    "env": "entry_point.supervisor.environment_report",
}


def main(arguments: Sequence[str]) -> int:
    """Command line: a command, then Hydra overrides.

    Without a command, a job trains: local mode of SageMaker's SDK v3 passes none. Elsewhere the
    default is `env`.

    SageMaker's toolkit runs this file as a script without a command. It repeats hyperparameters as
    options, which are ignored: the job reads them from the platform's file.
    """
    as_script = arguments[0].startswith("--") if arguments else _in_a_job()
    command, *overrides = ["train"] if as_script else [*arguments] or ["env"]
    if command not in PROGRAMS:
        sys.stderr.write(f"container: {command}: no such command; use {', '.join(PROGRAMS)}\n")
        return exit_codes.USAGE
    if command == "train":
        exit_on_stop(exit_codes.STOPPED)  # until its ranks run
    else:
        signal.signal(signal.SIGTERM, _exit_with_clean_up)
    os.environ[hand_over.STARTED] = repr(time.time())
    own_code.put_first(_input() / "data")
    return int(import_module(PROGRAMS[command]).main(overrides))


def _in_a_job() -> bool:
    return (_input() / "config/resourceconfig.json").exists()


def _input() -> Path:
    return Path(os.environ.get("ML_ROOT", "/opt/ml"), "input")


def _exit_with_clean_up(_number: int, _frame: FrameType | None) -> None:
    sys.exit(exit_codes.TERMINATED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
