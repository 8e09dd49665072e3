"""Training on SageMaker from a notebook or another Python program.

    from launch.notebook import trainer

    t = trainer("data=folder", "job.channels.training=s3://bucket/photos/", "optim.lr=0.1")
    t.train()  # with SDK v2: t.fit()

Needs the `sagemaker` SDK, and this clone on the path or `pip install .`.
"""

from typing import Any

from entry_point.contract.user_error import UserError
from launch.aws.aws_errors import explain
from launch.aws.training_job import prepare
from launch.aws.tuning.tuning_spec import TuningJobs, check_values
from launch.request.job_config import tracked_metric
from launch.request.launch_errors import LaunchError
from launch.request.tuning.tuning_request import GRID, is_minimized


def trainer(*overrides: str) -> Any:
    """Return the SDK's own object for training jobs with these overrides of `make sagemaker-train`.

    With SDK v3 a `sagemaker.train.ModelTrainer`, with v2 a `sagemaker.estimator.Estimator`. Its
    channels are bound, and every `train()` or `fit()` starts a job with a new name and its own
    checkpoints. The SDK's telemetry is off. Prints what an hour costs; nothing is billed before a
    job starts.

    Raises LaunchError or ConfigError with one line for each problem: an override that is not
    valid, or a role, bucket or image that does not exist.
    """
    from launch.aws.sdk.send import open_trainer

    try:
        return open_trainer(prepare(overrides))
    except UserError:
        raise
    except Exception as error:
        if text := explain(error):
            raise LaunchError(text) from error
        raise


def tuner(t: Any, ranges: dict[str, Any], objective: str | None = None, **options: Any) -> Any:
    """Return SDK v3's own HyperparameterTuner for a trainer; `tune()` starts its trials.

    `ranges` are settings of the job with the SDK's parameters: `{"optim.lr":
    ContinuousParameter(1e-4, 1e-1)}`. `objective` is a metric, as `validation:accuracy`; None: the
    task's first. The trainer's channels and metric definitions go along, and each trial has its own
    checkpoints. `options` are those of HyperparameterTuner; `max_jobs` is 10 unless given.

    Raises LaunchError or ConfigError for a key or value that the job would refuse, and with SDK v2.
    """
    from launch.aws.sdk.send import require_v3, watch_tuning

    require_v3("a tuning job")
    from launch.aws.sdk.v3_tuner import BoundTuner, as_ranges

    if not hasattr(t, "bound_jobs"):
        raise LaunchError(
            f"tuner: {type(t).__name__}: must be what launch.notebook.trainer returns"
        )
    check_values(t.bound_jobs.spec, as_ranges(ranges))

    objective = objective or tracked_metric(t.bound_jobs.spec.overrides)
    if options.get("strategy") != GRID:
        options.setdefault("max_jobs", 10)
    options.setdefault("objective_type", "Minimize" if is_minimized(objective) else "Maximize")
    jobs = TuningJobs(t.bound_jobs, {})
    watch_tuning(jobs)
    return BoundTuner(t, jobs, ranges, objective_metric_name=objective, **options)
