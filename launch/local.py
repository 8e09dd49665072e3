"""Train on this machine, in a run folder with the layout of the container's ``/opt/ml``.

``python -m launch.local [name=NAME] [Hydra overrides]`` is ``make local-train``. It writes the
files that SageMaker would write into ``runs/NAME/input/config``, then replaces itself with the
process that the container starts. The same name again resumes the run from its checkpoints;
without a name, each run gets a new folder.
"""

import os
import sys
from collections.abc import Sequence
from functools import partial

from entry_point.contract import exit_codes
from entry_point.contract.program import run_program
from entry_point.contract.run_folder import RunFolder
from entry_point.contract.stop_signals import defer_stop, exit_on_stop
from launch.request.local_run import (
    create_run_folder,
    point_latest_at,
    split_name,
    write_input_config,
)

HOST = "algo-1"


def start(arguments: Sequence[str]) -> int:
    """Prepare the run folder, then replace this process with the job.

    Raises UserError, before any file is written, if the job cannot start.
    """
    # Here, because requests to stop that come while they load must be heeded.
    from entry_point.config.train_config import load_train_config

    name, overrides = split_name(arguments)
    load_train_config(overrides)
    folder = create_run_folder(name)
    run = RunFolder(folder)
    launch_lock = run.hold(run.launch_lock)
    with run.hold(run.lock):
        write_input_config(folder, overrides, hosts=[HOST], current=HOST)
    point_latest_at(folder)
    # With exec, the job itself receives signals and sets the exit code. It inherits the lock.
    os.set_inheritable(launch_lock.fileno(), True)
    defer_stop()
    os.environ["ML_ROOT"] = str(folder)
    os.execv(sys.executable, [sys.executable, "-m", "entry_point.container", "train"])


def main(arguments: Sequence[str]) -> None:
    """Start the job; an error before that is one line on stderr."""
    sys.exit(run_program("local-train", partial(start, arguments)))


if __name__ == "__main__":
    exit_on_stop(exit_codes.STOPPED)
    main(sys.argv[1:])
