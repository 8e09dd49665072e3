"""Training on SageMaker from a notebook or another Python program.

    from launch.notebook import trainer

    t = trainer("data=folder", "job.channels.training=s3://bucket/photos/", "optim.lr=0.1")
    t.hyperparameters["optim.lr"] = "0.05"  # it is the SDK's own object
    t.train()  # with SDK v2: t.fit()

Needs the `sagemaker` SDK, and this clone on the path or `pip install '.[sagemaker]'`.
"""

import os
from importlib import metadata
from typing import Any
from unittest.mock import patch

from entry_point.contract.program import UserError
from launch.sagemaker.aws import open_session
from launch.sagemaker.jobs import Job
from launch.sagemaker.training import load_spec, prepare

# Replaces the SDKs' defaults files: nothing is added to a request, and no telemetry is sent.
_PLAIN = {
    "SchemaVersion": "1.0",
    "SageMaker": {"PythonSDK": {"Modules": {"TelemetryOptOut": True}}},
}
_QUIET = {
    # SDK v3 validates the role with IAM calls that the user may not be allowed to make.
    "SAGEMAKER_VALIDATE_ROLE": "false",
    "SAGEMAKER_SUPPRESS_V2_WARNING": "1",
}


def trainer(*overrides: str, session: Any = None) -> Any:
    """Return the SDK's own object for training jobs with these overrides of `make sagemaker-train`.

    With SDK v3 a `sagemaker.train.ModelTrainer`, with v2 a `sagemaker.estimator.Estimator`. Its
    channels are bound, every `train()` or `fit()` starts a job with a new name and its own
    checkpoints, and whatever you change on the object is sent. `session` is one of the SDK's: with
    a `PipelineSession`, `train()` or `fit()` returns a step's arguments; with v2, a `LocalSession`
    trains on this machine. The SDK's telemetry and defaults files are off.

    Raises UserError with one line for each problem: an override that is not valid, or a bucket that
    does not exist. AWS errors pass through.
    """
    version = _installed_version()
    spec = load_spec(overrides)
    boto_session = session.boto_session if session else open_session()
    prepare(spec, boto_session)
    # Afterwards, the caller's other use of the SDK keeps its own settings.
    with patch.dict(os.environ, _QUIET):
        if version.startswith("2."):
            from launch.sagemaker.estimator_v2 import estimator as build
        else:
            from launch.sagemaker.trainer_v3 import trainer as build
        return build(spec, boto_session, session, _PLAIN)


def sweep(*overrides: str) -> Job | None:
    """Start a tuning job as `make sagemaker-sweep` does; None with DRY_RUN=1.

    Raises UserError for what the job would refuse. AWS errors pass through.
    """
    from launch.sagemaker import tuning  # optional: nothing else needs it

    return tuning.sweep(overrides)


def _installed_version() -> str:
    try:
        return metadata.version("sagemaker")
    except metadata.PackageNotFoundError:
        raise UserError(
            "the sagemaker SDK is not installed in this environment: %pip install "
            "'sagemaker>=3.21,<4'"
        ) from None
