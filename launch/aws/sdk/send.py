"""The SDK's own object for a training job, of the installed `sagemaker` v2 or v3.

The SDKs add defaults. A request is passed member by member, and just before the SDK sends its own
version, that is compared with the request: if they differ, nothing is sent.
"""

import logging
from collections.abc import Callable
from importlib import metadata
from typing import Any

from launch.aws.sdk.plain_defaults import plain_defaults, read_defaults
from launch.aws.training_spec import TrainingJobs
from launch.aws.tuning.tuning_spec import TuningJobs
from launch.request.launch_config import LaunchConfig
from launch.request.launch_errors import LaunchError
from launch.request.tuning.tuning_request import OPERATION, Search

# SDK v3 always sends this; it is the service's default.
_HARMLESS = {"OutputDataConfig": {"CompressionType": "GZIP"}}
logger = logging.getLogger(__name__)


def installed_version() -> str:
    """The SDK's version; raises LaunchError if none is installed."""
    try:
        return metadata.version("sagemaker")
    except metadata.PackageNotFoundError:
        raise LaunchError(
            "the sagemaker SDK is not installed in this environment: use `make sagemaker-train`, "
            "which installs it, or in a notebook: %pip install 'sagemaker>=3.21,<4'"
        ) from None


def open_trainer(jobs: TrainingJobs) -> Any:
    """SDK v3's ModelTrainer or v2's Estimator for these jobs, with their channels bound.

    Each `train()` or `fit()` starts a job with a new name. Raises LaunchError, before anything is
    sent, if the SDK would send another request; AWS errors pass through.
    """
    version = installed_version()
    _compare_before_sending(jobs.session, "CreateTrainingJob", lambda: jobs.request)
    if version.startswith("2."):
        for key in needing_v3(jobs.spec.config):
            require_v3(key)
        logger.warning(
            "support for SageMaker SDK v2 ends on 2027-07-06; `make sagemaker-train` without SDK=2 "
            "uses v3"
        )
    with plain_defaults():
        return _opener(version)(jobs, read_defaults())


def open_tuner(trainer: Any, jobs: TuningJobs, search: Search) -> Any:
    """SDK v3's HyperparameterTuner for a search; raises LaunchError with v2."""
    require_v3("a tuning job")
    from launch.aws.sdk.v3_tuner import tuner_of

    watch_tuning(jobs)
    with plain_defaults():
        return tuner_of(trainer, jobs, search)


def watch_tuning(jobs: TuningJobs) -> None:
    """Compare what a tuner of these jobs sends with what was checked."""
    _compare_before_sending(jobs.training.session, OPERATION, lambda: jobs.request)


def needing_v3(config: LaunchConfig) -> list[str]:
    """The settings in use that v2 does not send."""
    target, job = config.target, config.job
    wanted: dict[str, object] = {
        "target.instance_types": target.instance_types,
        "target.training_plan": target.training_plan,
        "target.health_check": target.health_check,
        "job.remote_debug": job.remote_debug,
        "job.session_chaining": job.session_chaining,
    }
    for name, channel in job.channels.items():
        wanted[f"job.channels.{name}.file_system"] = channel.file_system
    return [key for key, value in wanted.items() if value]


def require_v3(what: str) -> None:
    """Raise LaunchError if the installed SDK is v2, which gets no new features."""
    if installed_version().startswith("2."):
        raise LaunchError(f"{what} needs SageMaker SDK v3, this is v2; leave out SDK=2")


def _opener(version: str) -> Callable[[TrainingJobs, dict[str, Any]], Any]:
    opener: Callable[[TrainingJobs, dict[str, Any]], Any]
    if version.startswith("2."):
        from launch.aws.sdk.v2 import bind as opener
    else:
        from launch.aws.sdk.v3 import bind as opener
    return opener


def start(trainer: Any) -> None:
    """Start a job of a trainer or tuner and return at once, without the SDK's own lines."""
    # The SDKs log failures that the exception reports anyway.
    logging.disable(logging.ERROR)
    try:
        if hasattr(trainer, "tune"):
            trainer.tune(wait=False)
        elif hasattr(trainer, "train"):
            trainer.train(wait=False, logs=False)
        else:
            trainer.fit(wait=False, logs=False)
    finally:
        logging.disable(logging.NOTSET)


def differences(sent: Any, meant: Any, path: str = "") -> list[str]:
    """Paths at which two requests differ; an empty member equals a missing one."""
    if isinstance(sent, dict) and isinstance(meant, dict):
        return [
            found
            for key in sorted({*sent, *meant})
            for found in differences(sent.get(key), meant.get(key), f"{path}.{key}".strip("."))
        ]
    if isinstance(sent, list) and isinstance(meant, list) and len(sent) == len(meant):
        return [
            found
            for index, (one, other) in enumerate(zip(sent, meant, strict=True))
            for found in differences(one, other, f"{path}[{index}]")
        ]
    return [] if sent == meant or not (sent or meant) else [path]


def without_harmless(sent: dict[str, Any], meant: dict[str, Any]) -> dict[str, Any]:
    """The sent request without the SDK defaults that change nothing."""
    cleaned = {**sent}
    for member, defaults in _HARMLESS.items():
        cleaned[member] = {
            key: value
            for key, value in sent.get(member, {}).items()
            if key in meant.get(member, {}) or defaults.get(key) != value
        }
    return cleaned


def _compare_before_sending(
    session: Any, operation: str, expected: Callable[[], dict[str, Any]]
) -> None:
    def compare(params: dict[str, Any], **_: Any) -> None:
        meant = expected()
        found = differences(without_harmless(params, meant), meant)
        if found:
            raise LaunchError(
                f"sagemaker {installed_version()} would send a different request "
                f"({', '.join(found)}); nothing was sent; change settings with overrides, as in "
                "trainer('target.volume_gb=100'); if you changed none, install the SDK's version "
                "pinned in requirements/"
            )

    session.events.register(f"provide-client-params.sagemaker.{operation}", compare)
