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
import logging
import sys
from collections.abc import Callable, Sequence

from launch.sagemaker import jobs, processing, training
from launch.sagemaker.aws import open_session, refuse_dry_run, run_and_explain

COMMANDS = ("train", "dataset", "predict", "status", "logs", "stop", "download")


def main(arguments: Sequence[str]) -> int:
    """Run one command; an error is one line on stderr and exit code 1."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    parser = argparse.ArgumentParser(
        "python -m launch.sagemaker",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("arguments", nargs="*", metavar="JOB or override")
    for flags, meaning in {
        ("--wait", "--follow"): "train, dataset, predict, logs: watch until the job ends",
        ("--checkpoints",): "download: include the checkpoints",
    }.items():
        parser.add_argument(*flags, action="store_true", help=meaning)
    options = parser.parse_intermixed_args(arguments)
    return run_and_explain(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    starts: dict[str, Callable[[Sequence[str]], jobs.Job | None]] = {
        "train": training.launch,
        "dataset": processing.pack,
        "predict": processing.predict,
    }
    command, arguments, lines = options.command, options.arguments, list[str]()
    if command in starts:
        return _watch(starts[command](arguments), options.wait)
    if command == "status":
        lines = _status(arguments)
    elif command == "stop":
        refuse_dry_run("stop")
        lines = [jobs.stop(*jobs.open_job(arguments))]
    elif command == "download":
        lines = jobs.download(*jobs.open_job(arguments), checkpoints=options.checkpoints)
    else:
        job, _ = jobs.open_job(arguments)
        if options.wait:
            return _watch(job, True)
        lines = [f"{host} {text}" for host, text in job.log().new_lines()]
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


def _watch(job: jobs.Job | None, wait: bool) -> int:
    """Exit code 1 if a job that is watched fails."""
    return int(jobs.follow(job) not in ("Completed", None)) if job and wait else 0


def _status(arguments: Sequence[str]) -> list[str]:
    """Returns the summary of a job; without a name, the latest jobs and endpoints."""
    if arguments:
        return jobs.summary(*jobs.open_job(arguments))
    session = open_session()
    return jobs.latest(session) or [f"no jobs in {session.region_name}"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
