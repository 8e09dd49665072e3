"""Training jobs on SageMaker from the command line.

``python -m launch.sagemaker train [--wait] [overrides]``,
``status [JOB]``, ``stop JOB``, ``logs JOB [--follow]``, ``download JOB [--checkpoints]``.
``DRY_RUN=1`` in the environment prints what would be sent. Each command takes the overrides of
configs/launch.yaml, such as ``job.region=eu-west-1``.
"""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from launch.request.launch_errors import LaunchError, explain


def main(arguments: Sequence[str]) -> int:
    """Run one command; the exit code is 1 for anything that did not work, told in one line."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    options = _parser().parse_intermixed_args(arguments)
    return run_and_explain(lambda: _COMMANDS[options.command](options))


def run_and_explain(command: Callable[[], int]) -> int:
    """The command's exit code, or 1 and one clear line for an error that the person can mend."""
    try:
        return command()
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        text = explain(error)
        if text is None:
            raise
        sys.stderr.write(f"{text}\n")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m launch.sagemaker")
    parser.add_argument("command", choices=sorted(_COMMANDS))
    parser.add_argument("arguments", nargs="*", metavar="JOB or override")
    parser.add_argument("--wait", "--follow", action="store_true", help="watch until the end")
    parser.add_argument("--checkpoints", action="store_true", help="download: also these")
    return parser


def is_dry_run() -> bool:
    """Whether `make ... DRY_RUN=1` asked for the request instead of the deed."""
    return os.environ.get("DRY_RUN", "") not in ("", "0")


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

    session, name = _session_and_name(options.arguments, required=False)
    for line in jobs.status(session, name) if name else jobs.latest(session):
        sys.stdout.write(f"{line}\n")
    return 0


def _stop(options: argparse.Namespace) -> int:
    from launch.aws import jobs

    session, name = _session_and_job(options.arguments)
    sys.stdout.write(jobs.stop(session, name) + "\n")
    return 0


def _logs(options: argparse.Namespace) -> int:
    from launch.aws import jobs
    from launch.aws.sagemaker_job import find

    session, name = _session_and_job(options.arguments)
    if options.wait:
        return _follow(find(session, name)[0])
    jobs.logs(session, name)
    return 0


def _download(options: argparse.Namespace) -> int:
    from launch.aws import jobs

    session, name = _session_and_job(options.arguments)
    jobs.download(session, name, checkpoints=options.checkpoints)
    return 0


def _follow(job: Any) -> int:
    from rich.console import Console

    from launch.aws.follow import follow

    return 0 if follow(job, Console()) in ("Completed", None) else 1


def _session_and_job(arguments: Sequence[str]) -> tuple[Any, str]:
    session, name = _session_and_name(arguments, required=True)
    assert name is not None
    return session, name


def _session_and_name(arguments: Sequence[str], *, required: bool) -> tuple[Any, str | None]:
    from launch.aws import session as aws
    from launch.request.launch_overrides import load_launch_config

    names = [argument for argument in arguments if "=" not in argument]
    config, unknown = load_launch_config([argument for argument in arguments if "=" in argument])
    if len(names) > 1:
        raise LaunchError(f"one job at a time, not {' '.join(names)}")
    if unknown:
        raise LaunchError(f"{unknown[0]}: only settings of configs/launch.yaml mean something here")
    if required and not names:
        raise LaunchError("which job? add ARGS=NAME; `make sagemaker-status` lists the latest")
    return aws.open_session(config.job.region), names[0] if names else None


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "train": _train,
    "status": _status,
    "stop": _stop,
    "logs": _logs,
    "download": _download,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
