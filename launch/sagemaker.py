"""Training jobs on SageMaker: ``make sagemaker-train`` and ``make sagemaker``.

``python -m launch.sagemaker COMMAND`` takes one of these commands, and overrides of
configs/launch.yaml such as ``job.region=eu-west-1``:

train [--wait] [overrides]    launch a job; DRY_RUN=1 prints the request
status [JOB]                  the latest jobs, or the state of one
logs JOB [--follow]           the lines that the job has printed
stop JOB                      stop the job, with a checkpoint
download JOB [--checkpoints]  model and output into runs/JOB
"""

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from launch.aws.aws_errors import run_and_explain
from launch.aws.session import is_dry_run, open_session


def main(arguments: Sequence[str]) -> int:
    """Run one command; an error is one line on stderr and exit code 1."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    options = _parser().parse_intermixed_args(arguments)
    return run_and_explain(lambda: _COMMANDS[options.command](options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m launch.sagemaker")
    parser.add_argument("command", choices=_COMMANDS)
    parser.add_argument("arguments", nargs="*", metavar="JOB or override")
    parser.add_argument(
        "--wait", "--follow", action="store_true", help="train, logs: watch until the job ends"
    )
    parser.add_argument(
        "--checkpoints", action="store_true", help="download: include the checkpoints"
    )
    return parser


def _train(options: argparse.Namespace) -> int:
    from launch.aws import training_job

    if is_dry_run():
        training_job.dry_run(options.arguments)
        return 0
    session, name = training_job.launch(options.arguments)
    if not options.wait:
        return 0
    from launch.aws.sagemaker_job import Job

    return _follow(Job(session, name))


def _status(options: argparse.Namespace) -> int:
    from launch.aws import jobs

    region, name = jobs.parse_job(options.arguments)
    session = open_session(region)
    for line in jobs.status(session, name) if name else jobs.latest(session):
        sys.stdout.write(f"{line}\n")
    return 0


def _stop(options: argparse.Namespace) -> int:
    from launch.aws import jobs

    sys.stdout.write(jobs.stop(*jobs.open_job(options.arguments)) + "\n")
    return 0


def _logs(options: argparse.Namespace) -> int:
    from launch.aws import jobs
    from launch.aws.sagemaker_job import find_job

    session, name = jobs.open_job(options.arguments)
    if options.wait:
        return _follow(find_job(session, name)[0])
    jobs.logs(session, name)
    return 0


def _download(options: argparse.Namespace) -> int:
    from launch.aws import jobs

    session, name = jobs.open_job(options.arguments)
    jobs.download(session, name, checkpoints=options.checkpoints)
    return 0


def _follow(job: Any) -> int:
    from rich.console import Console

    from launch.aws.follow import follow

    return 0 if follow(job, Console()) in ("Completed", None) else 1


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "train": _train,
    "status": _status,
    "logs": _logs,
    "stop": _stop,
    "download": _download,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
