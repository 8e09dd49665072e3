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
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

from entry_point.job import own_code
from entry_point.job.program import ExitCode, end_process, exit_on_stop, run_program
from entry_point.job.run_folder import CONTAINER_ROOT, RunFolder, has_resources

PROGRAMS = {
    "train": "entry_point.job.training_job",
    "optimize": "entry_point.optimize",
    "predict": "entry_point.predict",
    "evaluate": "entry_point.evaluate",
    "serve": "entry_point.serve",
    "check-dataset": "entry_point.check_dataset",
    "env": "entry_point.environment_report",
}
_USAGE = """Image training, the same locally, in this container and on SageMaker.

docker run IMAGE [COMMAND] [key=value ...]

  train          train, from the files below /opt/ml/input; SageMaker runs this
  serve          answer requests with the model in /opt/ml/model; SageMaker runs this
  optimize       pack images for training:     source=DIR output=DIR
  check-dataset  read a dataset, list damage:  root=DIR
  predict        predict images, by part:      model_dir=DIR input=PATH output_dir=DIR
  evaluate       compute a model's metrics:    model_dir=DIR data.root=DIR
  env            print versions, devices and the files of the job

Without a command: train inside a job, env elsewhere. The keys of each command are Hydra overrides;
a wrong one ends the command with a line that says what is allowed. /opt/ml is the run folder, or
the folder that ML_ROOT names. Mount it writable for the user that runs the container:

  docker run -v "$PWD/run:/opt/ml" --user "$(id -u):$(id -g)" IMAGE train trainer.epochs=1

`make docker-train` does all of this.
"""


def main(arguments: Sequence[str]) -> int:
    """Command line: a command, then Hydra overrides.

    Without a command, a job trains: local mode of SageMaker's SDK v3 passes none. Elsewhere the
    default is `env`.

    SageMaker's toolkit runs this file as a script without a command. It repeats hyperparameters as
    options, which are ignored: the job reads them from the platform's file.
    """
    root = Path(os.environ.get("ML_ROOT", CONTAINER_ROOT))
    if arguments[:1] == ["help"] or {"--help", "-h"}.intersection(arguments):
        sys.stdout.write(_USAGE)
        return ExitCode.FINISHED
    as_script = arguments[0].startswith("--") if arguments else has_resources(root)
    command, *overrides = ["train"] if as_script else [*arguments] or ["env"]
    if command not in PROGRAMS:
        sys.stderr.write(f"container: {command}: no such command; use {', '.join(PROGRAMS)}\n")
        return ExitCode.USAGE
    if command == "train":
        exit_on_stop(ExitCode.STOPPED)  # until its ranks run
    else:
        # With all that `finally` cleans up.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(ExitCode.TERMINATED))
        if code := run_program(command, partial(_use_sent_code, RunFolder(root))):
            return code
    program = import_module(PROGRAMS[command])
    return int(program.main(overrides))


def _use_sent_code(run: RunFolder) -> int:
    """Use the code that was sent with a job; before any other program is imported. A training job
    does it once it holds its run folder, where it can leave the reason of a failure."""
    own_code.use_sent(run.channels)
    return ExitCode.FINISHED


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
