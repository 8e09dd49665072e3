"""Jobs on SageMaker: training, packing, prediction, and what becomes of them.

``python -m launch.sagemaker COMMAND`` takes one of these commands; DRY_RUN=1 prints the request:

train [--wait] [overrides]    train
dataset [--wait] source=s3://... output=s3://... [overrides]
                              pack a dataset on several hosts
predict [--wait] JOB input=s3://... output_dir=s3://... [overrides]
                              predict images on several hosts with the model of JOB
status [JOB]                  the latest jobs and endpoints, or the state of one job
logs JOB [--follow]           the lines that the job has printed
stop JOB                      stop the job, with a checkpoint
download JOB [--checkpoints]  model and output into runs/JOB
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from entry_point.job.program import UserError
from launch.sagemaker import jobs, processing
from launch.sagemaker.aws import (
    open_session,
    print_request,
    refuse_dry_run,
    run_and_explain,
    session_unless_dry,
)
from launch.sagemaker.checks import require_valid
from launch.sagemaker.config import split_name
from launch.sagemaker.plan import plan, send

COMMANDS = ("train", "dataset", "predict", "status", "logs", "stop", "download")


def main(arguments: Sequence[str]) -> int:
    """Run one command; an error is one line on stderr and exit code 1."""
    parser = argparse.ArgumentParser(
        "python -m launch.sagemaker",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("arguments", nargs="*", metavar="JOB or override")
    watch = "train, dataset, predict, logs: watch until the job ends"
    parser.add_argument("--wait", "--follow", action="store_true", help=watch)
    include = "download: include the checkpoints"
    parser.add_argument("--checkpoints", action="store_true", help=include)
    options = parser.parse_intermixed_args(arguments)
    return run_and_explain(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    starts: dict[str, Callable[[Sequence[str]], jobs.Job | None]] = {
        "train": train,
        "dataset": processing.pack,
        "predict": processing.predict,
    }
    command, arguments = options.command, options.arguments
    if options.wait and command not in (*starts, "logs"):
        raise UserError(f"--wait, --follow: {command} watches no job; `logs JOB --follow` does")
    if options.checkpoints and command != "download":
        raise UserError(f"--checkpoints: {command} has no such option; drop it")
    if command in starts:
        started = starts[command](arguments)
        return jobs.follow(started) if started and options.wait else 0
    if command == "status" and not arguments:
        session = open_session()
        return _print(jobs.latest(session) or [f"no jobs in {session.region_name}"])
    if command in ("stop", "download"):
        refuse_dry_run(command)
    name, others = split_name(arguments)
    if others:
        raise UserError(f"{others[0]}: {command} takes the name of a job, and no settings")
    job, description = jobs.find_job(open_session(), name)
    if command == "status":
        return _print(jobs.summary(job, description))
    if command == "stop":
        return _print([jobs.stop(job, description)])
    if command == "download":
        return _print(jobs.download(job, description, checkpoints=options.checkpoints))
    return jobs.follow(job) if options.wait else _print(job.log().new_lines())


def train(arguments: Sequence[str]) -> jobs.Job | None:
    """Launch a training job; a dry run prints its request, without any call, and returns None.

    Raises UserError with one line for each problem; AWS errors pass through.
    """
    session = session_unless_dry()
    planned = plan(arguments, session)
    require_valid(planned, session)
    if session is None:
        print_request(planned.request)
        return None
    name = send(planned, session)
    _print([f"job {name} created", *next_steps(name, session.region_name)])
    return jobs.Job(session, name)


def next_steps(name: str, region: str) -> list[str]:
    """Returns the commands for a job, and its page in the console."""
    domains = {"cn": "amazonaws.cn", "us-gov": "amazonaws-us-gov.com"}
    domain = domains.get(region.rsplit("-", 2)[0], "aws.amazon.com")
    return [
        f'  make sagemaker ARGS="status {name}"     make sagemaker ARGS="logs {name} --follow"',
        f'  make sagemaker ARGS="download {name}"   make sagemaker ARGS="stop {name}"',
        f"  https://{region}.console.{domain}/sagemaker/home?region={region}#/jobs/{name}",
    ]


def _print(lines: Any) -> int:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
