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
from launch.request.launch_errors import LaunchError

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
    _compare_before_sending(jobs, version)
    if version.startswith("2."):
        logger.warning(
            "support for SageMaker SDK v2 ends on 2027-07-06; `make sagemaker-train` without SDK=2 "
            "uses v3"
        )
    with plain_defaults():
        return _opener(version)(jobs, read_defaults())


def _opener(version: str) -> Callable[[TrainingJobs, dict[str, Any]], Any]:
    opener: Callable[[TrainingJobs, dict[str, Any]], Any]
    if version.startswith("2."):
        from launch.aws.sdk.v2 import bind as opener
    else:
        from launch.aws.sdk.v3 import bind as opener
    return opener


def start(trainer: Any) -> None:
    """Start a job and return at once, without the SDK's own lines."""
    # The SDKs log failures that the exception reports anyway.
    logging.disable(logging.ERROR)
    try:
        begin = trainer.train if hasattr(trainer, "train") else trainer.fit
        begin(wait=False, logs=False)
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


def _compare_before_sending(jobs: TrainingJobs, version: str) -> None:
    def compare(params: dict[str, Any], **_: Any) -> None:
        meant = jobs.request
        found = differences(without_harmless(params, meant), meant)
        if found:
            raise LaunchError(
                f"sagemaker {version} would send a different request ({', '.join(found)}); nothing "
                "was sent; change settings with overrides, as in trainer('target.volume_gb=100'); "
                "if you changed none, install the SDK's version pinned in requirements/"
            )

    jobs.session.events.register("provide-client-params.sagemaker.CreateTrainingJob", compare)
