"""Training jobs on SageMaker: ``make sagemaker-train``, ``-sweep`` and ``make sagemaker``.

``python -m launch.sagemaker COMMAND`` takes one of these commands, and overrides of
configs/launch.yaml such as ``job.region=eu-west-1``:

train [--wait] [overrides]    launch a job; DRY_RUN=1 prints the request
sweep [--wait] [overrides]    train a job for each combination of values; optim.lr=0.01,0.1
status [JOB]                  the latest jobs, or the state of one
logs JOB [--follow]           the lines that the job has printed
stop JOB                      stop the job, with a checkpoint
download JOB [--checkpoints]  model and output into runs/JOB
"""

import argparse
import logging
import sys
from collections.abc import Sequence

from launch.aws.aws_errors import run_and_explain
from launch.request.command_line import CommandLine


def main(arguments: Sequence[str]) -> int:
    """Run one command; an error is one line on stderr and exit code 1."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    parser = CommandLine("python -m launch.sagemaker")
    parser.add_argument("command", choices=("train", "sweep", "status", "logs", "stop", "download"))
    parser.add_argument("arguments", nargs="*", metavar="JOB or override")
    parser.add_argument(
        "--wait",
        "--follow",
        action="store_true",
        help="train, sweep, logs: watch until the job ends",
    )
    parser.add_argument(
        "--checkpoints", action="store_true", help="download: include the checkpoints"
    )
    options = parser.read(arguments)
    return run_and_explain(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    # Importing these takes most of the start-up time, which a usage error need not wait for.
    from launch.aws import jobs, training_job
    from launch.aws.follow import follow
    from launch.aws.sagemaker_job import Job, find_job
    from launch.aws.tuning import tuning_job

    lines: list[str] = []
    job: Job | None = None
    if options.command == "train":
        job = training_job.launch(options.arguments)
    elif options.command == "sweep":
        job = tuning_job.sweep(options.arguments)
    elif options.command == "status":
        lines = jobs.status(options.arguments)
    elif options.command == "stop":
        lines = [jobs.stop(*jobs.open_job(options.arguments))]
    elif options.command == "download":
        lines = jobs.download(*jobs.open_job(options.arguments), checkpoints=options.checkpoints)
    else:
        job, _ = find_job(*jobs.open_job(options.arguments))
        if not options.wait:
            lines = [f"{host} {text}" for host, text in job.log().new_lines()]
    sys.stdout.writelines(f"{line}\n" for line in lines)
    if job and options.wait:
        return int(follow(job) not in ("Completed", None))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
