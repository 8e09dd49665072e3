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
from launch.request.launch_errors import LaunchError


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
