"""Pack a dataset on SageMaker: ``make sagemaker-dataset``.

``python -m launch.dataset source=s3://... output=s3://... [target.instance_count=4] [overrides]``
launches a Processing job, watches it and merges the parts that its hosts write. ``--no-wait`` ends
after the launch; ``--merge JOB`` merges later. ``DRY_RUN=1`` prints the request. Overrides of
configs/launch.yaml select the machines, those of configs/optimize.yaml set how to pack.
"""

import argparse
import sys
from collections.abc import Sequence

from launch.aws.aws_errors import run_and_explain
from launch.request.command_line import CommandLine


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 if everything requested is done, else 1."""
    parser = CommandLine("python -m launch.dataset")
    parser.add_argument("arguments", nargs="*", metavar="JOB or override")
    parser.add_argument("--no-wait", action="store_true", help="end after the launch")
    parser.add_argument("--merge", action="store_true", help="only merge the parts of JOB")
    options = parser.read(arguments)
    return run_and_explain(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    # Importing these takes most of the start-up time, which a usage error need not wait for.
    from launch.aws import jobs, packing_job, packing_merge
    from launch.aws.follow import follow
    from launch.aws.sagemaker_job import Job

    job: Job | None
    state: str | None = "Completed"
    if options.merge:
        job = packing_merge.find_packing_job(*jobs.open_job(options.arguments))
    elif job := packing_job.launch(options.arguments):
        state = None if options.no_wait else follow(job)
    else:
        return 0
    if state is None:
        later = f'make sagemaker-dataset ARGS="--merge {job.name}"'
        sys.stdout.write(f"when the job has completed, merge its parts: {later}\n")
        return 0
    if state != "Completed":
        return 1
    uri = packing_merge.merge(job)
    sys.stdout.write(
        f"the dataset is in {uri}; to train on it, add\n"
        f"  data=shards data.access=stream job.channels.training={uri}/\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
