"""Train on this machine, in a run folder with the layout of the container's ``/opt/ml``.

``python -m launch.local [name=NAME] [Hydra overrides]`` is ``make local-train``. It replaces itself
with the program that the container starts, whose run folder is ``runs/NAME``. The same name again
resumes the run from its checkpoints; without a name, each run gets a new folder.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from entry_point.config.config_errors import refuse_in_overrides
from entry_point.job.program import (
    ExitCode,
    asks_for_help,
    defer_stop,
    exit_on_stop,
    run_for_reader,
    run_program,
)
from entry_point.job.run_folder import LINK_LATEST, NEW_RUN, RUN_NAME, RunFolder, check_run_name

RUNS = Path("runs")


def start(arguments: Sequence[str]) -> int:
    """Create the run folder, then replace this process with the job, which takes the overrides.

    Raises UserError for a name that no run can have, and for credentials.
    """
    name, overrides = split_name(arguments)
    folder, is_new = create_run_folder(name)
    os.environ["ML_ROOT"] = os.environ[LINK_LATEST] = str(folder)
    os.environ[NEW_RUN] = str(folder) if is_new else ""
    os.environ[RUN_NAME] = folder.name
    # Version 1 wrote the overrides of each start there, as SageMaker does.
    shutil.rmtree(RunFolder(folder).platform_config, ignore_errors=True)
    defer_stop()
    # With exec, the job itself receives signals and sets the exit code.
    command = [sys.executable, "-m", "entry_point", "train", *overrides]
    os.execv(sys.executable, command)


def split_name(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Returns the value of ``name=NAME``, and the other arguments.

    Raises UserError if NAME is not a valid job name, or if any argument has credentials.
    """
    refuse_in_overrides(arguments)
    names = [each.partition("=")[2] for each in arguments if each.startswith("name=")]
    overrides = [each for each in arguments if not each.startswith("name=")]
    name = names[-1] if names else None
    if name is not None:
        check_run_name(name)
    return name, overrides


def create_run_folder(name: str | None) -> tuple[Path, bool]:
    """Creates ``runs/NAME`` unless it exists, or a new folder named after the current time.

    Returns the folder, and whether it is new.
    """
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    folder, attempt = RUNS / (name or stamp), 1
    while True:
        try:
            folder.mkdir(parents=True)
            return folder.resolve(), True
        except FileExistsError:
            if name is not None:
                return folder.resolve(), False
            attempt += 1
            folder = RUNS / f"{stamp}-{attempt}"


def main(arguments: Sequence[str]) -> None:
    """Start the job; an error before that is one line on stderr."""
    if not asks_for_help(arguments, __doc__):
        sys.exit(run_program("local-train", partial(start, arguments)))
    from entry_point.config.train_config import TrainConfig
    from entry_point.config.usage import print_settings

    run_for_reader(partial(print_settings, TrainConfig))


if __name__ == "__main__":
    exit_on_stop(ExitCode.STOPPED)
    main(sys.argv[1:])
