"""Every command: `python -m entry_point COMMAND [key=value ...]`. It is the image's entry point.

SageMaker runs the commands `train` and `serve`. All commands also run outside a container: then
`ML_ROOT` names the run folder. This module prints their help and their log, checks their settings
before it imports torch, and turns their errors into one line and an exit code.

It handles SIGTERM before it imports the command's module, because the kernel drops signals that a
container's first process does not handle.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from entry_point.config.config_errors import did_you_mean
from entry_point.job import own_code
from entry_point.job.processing import is_processing
from entry_point.job.program import (
    ExitCode,
    drop_unread_output,
    end_process,
    exit_on_stop,
    run_for_reader,
    run_program,
)
from entry_point.job.run_folder import CONTAINER_ROOT, RunFolder, has_resources
from entry_point.job.text import printable


class Command(NamedTuple):
    """A command."""

    function: str
    """`module:name`, imported when the command runs, perhaps with torch. Returns the exit code."""
    settings: str
    """The class of the command's settings; empty if it takes names or nothing."""
    arguments: str
    meaning: str
    config: str = ""
    """The file in configs/ of these settings: the function gets the checked settings. Empty: it
    gets the arguments."""
    dataset: str = ""
    """The command's other name for `data.root`, if it has the settings of `data` at its top."""


_CONFIG = "entry_point.config"
COMMANDS = {
    "train": Command(
        "entry_point.start_training:run_job",
        f"{_CONFIG}.train_config:TrainConfig",
        "[key=value ...]",
        "train, from the files below /opt/ml/input; SageMaker runs this",
    ),
    "serve": Command(
        "entry_point.serve:serve",
        f"{_CONFIG}.serve_config:ServeConfig",
        "[model_dir=DIR]",
        "answer requests with the model in /opt/ml/model; SageMaker runs this",
    ),
    "optimize": Command(
        "entry_point.optimize:optimize",
        f"{_CONFIG}.packing_config:OptimizeConfig",
        "source=DIR output=DIR",
        "pack images into the format that trains fastest",
        config="optimize",
        dataset="source",
    ),
    "check-dataset": Command(
        "entry_point.check_dataset:check",
        f"{_CONFIG}.packing_config:CheckConfig",
        "root=DIR",
        "read a whole dataset, count its classes and list what is damaged",
        config="check_dataset",
        dataset="root",
    ),
    "predict": Command(
        "entry_point.predict:run",
        f"{_CONFIG}.predict_config:PredictConfig",
        "input=PATH output_dir=DIR",
        "predict images; repeated, it continues",
        config="predict",
        dataset="input",
    ),
    "evaluate": Command(
        "entry_point.evaluate:run",
        f"{_CONFIG}.evaluate_config:EvaluateConfig",
        "[data.root=DIR]",
        "compute a model's metrics and list its worst predictions",
        config="evaluate",
    ),
    "show-batch": Command(
        "entry_point.show_batch:show",
        f"{_CONFIG}.train_config:TrainConfig",
        "[output=FILE]",
        "draw the first training samples as the model would get them",
    ),
    "sweep": Command(
        "entry_point.sweep:sweep",
        f"{_CONFIG}.train_config:TrainConfig",
        "name=NAME key=A,B",
        "train every combination, in runs/NAME/0, 1, ...; repeated, it resumes",
    ),
    "compare": Command(
        "entry_point.compare:compare", "", "[FOLDER ...]", "print a table of runs, of runs/"
    ),
    "weights": Command(
        "entry_point.weights:fetch", "", "MODEL ...", "fetch published weights into pretrained/"
    ),
    "env": Command(
        "entry_point.environment_report:report", "", "", "print versions, devices and job files"
    ),
}
_HEAD = """Image training, the same locally, in a container and on SageMaker.

python -m entry_point COMMAND [key=value ...]
docker run IMAGE [COMMAND] [key=value ...]
"""
_FOOT = """
Without a command: train inside a job, env elsewhere. `COMMAND --help` lists a command's settings,
which are Hydra overrides; a wrong one ends the command with a line that says what is allowed.
/opt/ml is the run folder, or the folder that ML_ROOT names. Mount it writable for the user that
runs the container:

  docker run -v "$PWD/run:/opt/ml" --user "$(id -u):$(id -g)" IMAGE train trainer.epochs=1

`make docker-train` does all of this.
"""


def main(arguments: Sequence[str]) -> int:
    """Run a command in this process, which runs nothing else; returns the exit code.

    Without a command, a job trains: local mode of SageMaker's SDK v3 passes none.

    SageMaker's toolkit runs this file as a script without a command. It passes hyperparameters as
    options, which are ignored: the job reads them from the platform's file.
    """
    if arguments[:1] and arguments[0] in ("help", "--help", "-h"):
        return run_for_reader(_print_usage)
    if not arguments:
        arguments = ["train" if has_resources(_root()) else "env"]
    elif arguments[0].startswith("--"):
        arguments = ["train"]
    command, *others = arguments
    if command not in COMMANDS:
        known = f"must be one of {', '.join(COMMANDS)}{did_you_mean(command, COMMANDS)}"
        sys.stderr.write(f"entry_point: {printable(command)}: no such command, {known}\n")
        return ExitCode.USAGE
    if command == "train":
        exit_on_stop(ExitCode.STOPPED)  # until the ranks run
    else:
        # An exception, so that `finally` blocks clean up.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(ExitCode.TERMINATED))
        drop_unread_output()  # as by `| head`; `train` does so itself
    return run(command, others)


def run(command: str, arguments: Sequence[str]) -> int:
    """Run a command; returns its exit code. Its error becomes a line on stderr."""
    if {"-h", "--help"} & {*arguments}:
        return run_for_reader(partial(_print_help, command))
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    # Not for all packages: SPDL's threads log their statistics.
    for own in ("entry_point", "custom_op"):
        logging.getLogger(own).setLevel(logging.INFO)
    root, work = _root(), partial(_call, COMMANDS[command], arguments)
    if not is_processing(root):
        return run_program(command, work)
    message = root / "output" / "message"  # shown for a Processing job
    message.unlink(missing_ok=True)
    return run_program(command, work, message)


def end_with(command: str) -> NoReturn:
    """Run a command by the name of its module, as in version 1: `python -m entry_point.predict` is
    `python -m entry_point predict`."""
    end_process(main([command, *sys.argv[1:]]))


def _call(command: Command, arguments: Sequence[str]) -> int:
    """Check the settings of a command, then import and call its function."""
    if command is not COMMANDS["train"]:  # `train` does so where it can leave the failure's reason
        own_code.use_sent(RunFolder(_root()).channels)
    given = _checked(command, arguments) if command.config else arguments
    function: Callable[[Any], int] = _named(command.function)
    return function(given)


def _checked(command: Command, arguments: Sequence[str]) -> Any:
    """Returns the settings. Raises ConfigError."""
    from entry_point.config.compose import load_config  # finds the configuration that was sent

    if command.dataset:
        start = f"{command.dataset}="
        arguments = [
            start + given.removeprefix("data.root=") if given.startswith("data.root=") else given
            for given in arguments
        ]
    return load_config(command.config, _named(command.settings), arguments)


def _named(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def _root() -> Path:
    return Path(os.environ.get("ML_ROOT", CONTAINER_ROOT))


def _print_usage() -> int:
    sys.stdout.write(f"{_HEAD}\n")
    for name, command in COMMANDS.items():
        sys.stdout.write(f"  {name:<14} {command.meaning}\n")
    sys.stdout.write(_FOOT)
    return ExitCode.FINISHED


def _print_help(name: str) -> int:
    command = COMMANDS[name]
    usage = f"python -m entry_point {name} {command.arguments}".rstrip()
    sys.stdout.write(f"{usage}\n\n  {command.meaning}\n")
    if command.settings:
        from entry_point.config.usage import print_settings

        print_settings(_named(command.settings))
    return ExitCode.FINISHED


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
