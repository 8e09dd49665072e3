"""Launching a tuning job: `make sagemaker-sweep`."""

import sys
from collections.abc import Sequence

from launch.aws.sagemaker_job import TUNING, Job
from launch.aws.session import is_dry_run, print_request
from launch.aws.training_job import prepare_spec
from launch.aws.tuning.tuning_spec import TuningJobs, load_tuning


def sweep(arguments: Sequence[str]) -> Job | None:
    """Send the checked request with SDK v3; a dry run prints it and returns None.

    Raises LaunchError or ConfigError with one line for each problem; AWS errors pass through.
    """
    spec = load_tuning(arguments)
    if is_dry_run():
        print_request(spec.request(spec.training.config.job.region))
        return None
    from launch.aws.sdk.send import open_trainer, open_tuner, start

    spec.request(spec.training.config.job.region)
    trials = spec.search.max_jobs
    jobs = TuningJobs(prepare_spec(spec.training), {})
    sys.stdout.write(f"for each of {trials} trials, {spec.search.parallel} at a time\n")
    start(open_tuner(open_trainer(jobs.training), jobs, spec.search))
    name: str = jobs.request["HyperParameterTuningJobName"]
    sys.stdout.write(f"tuning job {name} created\n")
    sys.stdout.write(f'  make sagemaker ARGS="status {name}"     the table of its trials\n')
    sys.stdout.write(f'  make sagemaker ARGS="stop {name}"\n')
    return Job(jobs.training.session, name, TUNING)
