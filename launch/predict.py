"""Predict images on SageMaker: ``make sagemaker-predict``.

``python -m launch.predict JOB input=s3://... output_dir=s3://... [target.instance_count=4]
[overrides]`` launches a Processing job in which each host predicts a part with the model of the
training job JOB, or with s3://.../model.tar.gz. ``--wait`` watches until it ends. ``DRY_RUN=1``
prints the request. Overrides of configs/launch.yaml select the machines, those of
configs/predict.yaml set how to predict.
"""

import argparse
import sys
from collections.abc import Sequence

from launch.aws.aws_errors import run_and_explain
from launch.request.command_line import CommandLine


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 if everything requested is done, else 1."""
    parser = CommandLine("python -m launch.predict")
    parser.add_argument("arguments", nargs="*", metavar="JOB or override")
    parser.add_argument("--wait", action="store_true", help="watch until the job ends")
    options = parser.read(arguments)
    return run_and_explain(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    # Importing these takes most of the start-up time, which a usage error need not wait for.
    from launch.aws import prediction_job
    from launch.aws.follow import follow

    job = prediction_job.launch(options.arguments)
    if job is None:
        return 0
    if options.wait:
        return int(follow(job) not in ("Completed", None))
    sys.stdout.write(f'  make sagemaker ARGS="status {job.name}"\n')
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
