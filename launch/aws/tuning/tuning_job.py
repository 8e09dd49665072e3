"""Launching a tuning job: `make sagemaker-sweep`."""

import sys
from collections.abc import Sequence
from dataclasses import replace

from launch.aws.sagemaker_job import TUNING, Job
from launch.aws.session import aws_client, is_dry_run, print_request
from launch.aws.training_job import prepare
from launch.aws.tuning.tuning_spec import load_tuning


def sweep(arguments: Sequence[str]) -> Job | None:
    """Send the checked request; a dry run prints it, without any call, and returns None.

    Raises LaunchError or ConfigError with one line for each problem; AWS errors pass through.
    """
    spec = load_tuning(arguments)
    request = spec.request(spec.training.config.job.region)
    if is_dry_run():
        print_request(request)
        return None
    training, session = prepare(spec.training)
    request = replace(spec, training=training).request(session.region_name)
    aws_client(session, "sagemaker").create_hyper_parameter_tuning_job(**request)
    search, name = spec.search, request["HyperParameterTuningJobName"]
    sys.stdout.write(f"for each of {search.max_jobs} trials, {search.parallel} at a time\n")
    sys.stdout.write(f"tuning job {name} created\n")
    sys.stdout.write(f'  make sagemaker ARGS="status {name}"     the table of its trials\n')
    sys.stdout.write(f'  make sagemaker ARGS="stop {name}"\n')
    return Job(session, name, TUNING)
