"""Packing a data set on SageMaker: a Processing job over N hosts, then one index for all parts.

``python -m launch.dataset source=s3://... output=s3://... [target.instance_count=4] [overrides]``
launches, watches and merges; with ``--no-wait`` it ends after the launch, and ``--merge JOB``
does the rest. ``DRY_RUN=1`` in the environment prints what would be sent. Overrides of
configs/launch.yaml say on what machines; those of configs/optimize.yaml, how to pack.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from launch.request.launch_errors import LaunchError
from launch.sagemaker import is_dry_run, run_and_explain


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 when all that was asked for is done, else 1."""
    parser = argparse.ArgumentParser(prog="python -m launch.dataset")
    parser.add_argument("arguments", nargs="*", metavar="override or JOB")
    parser.add_argument("--no-wait", action="store_true", help="leave the job when it is created")
    parser.add_argument("--merge", action="store_true", help="only unite what JOB has made")
    options = parser.parse_intermixed_args(arguments)
    return run_and_explain(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    from launch.aws import packing_job

    if options.merge:
        return _merge(*_session_and_name(options.arguments))
    if is_dry_run():
        packing_job.dry_run(options.arguments)
        return 0
    session, name = packing_job.launch(options.arguments)
    later = f'when it has ended: make sagemaker-dataset ARGS="--merge {name}"'
    if options.no_wait:
        sys.stdout.write(f"{later}\n")
        return 0
    state = _watch(session, name)
    if state is None:
        sys.stdout.write(f"{later}\n")
        return 0
    return _merge(session, name) if state == "Completed" else 1


def _watch(session: Any, name: str) -> str | None:
    from rich.console import Console

    from launch.aws.follow import follow
    from launch.aws.sagemaker_job import Job

    return follow(Job(session, name, "Processing"), Console())


def _merge(session: Any, name: str) -> int:
    from launch.aws.packing_merge import merge
    from launch.aws.sagemaker_job import Job

    uri = merge(Job(session, name, "Processing"))
    sys.stdout.write(
        f"the data set is in {uri}; a job reads it with\n"
        f"  data=shards data.access=stream job.channels.training={uri}/\n"
    )
    return 0


def _session_and_name(arguments: Sequence[str]) -> tuple[Any, str]:
    from launch.aws import session as aws
    from launch.request.launch_overrides import load_launch_config

    names = [argument for argument in arguments if "=" not in argument]
    config, unknown = load_launch_config([argument for argument in arguments if "=" in argument])
    if len(names) != 1 or unknown:
        raise LaunchError("--merge takes the name of one job, as the launch printed it")
    return aws.open_session(config.job.region), names[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
