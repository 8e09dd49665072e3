"""A CreateTrainingJob request sent through whichever `sagemaker` SDK is installed.

Each SDK has defaults of its own. The request is handed over member by member, and just before it
leaves, what the SDK made of it is held against it: if they differ, nothing is sent.
"""

import logging
import os
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from launch.request.launch_errors import LaunchError

DEFAULTS_FILE = Path(__file__).with_name("sagemaker_defaults.yaml")
# What SDK v3 cannot be kept from sending; it is the service's default.
_HARMLESS = {"OutputDataConfig": {"CompressionType": "GZIP"}}

logger = logging.getLogger(__name__)


def installed_version() -> str:
    """The SDK's version, or LaunchError naming the way to install one."""
    try:
        return metadata.version("sagemaker")
    except metadata.PackageNotFoundError:
        raise LaunchError(
            "the sagemaker SDK is not installed here: run through make, which installs "
            "requirements/launch.txt into .venv-launch"
        ) from None


def send(request: dict[str, Any], session: Any) -> None:
    """Create the training job by the installed SDK.

    `session` is a boto3 session with a region. Raises LaunchError, before anything is sent, if the
    SDK would send anything but the request; errors of AWS pass through.
    """
    version = installed_version()
    import yaml  # the SDKs bring it

    defaults = yaml.safe_load(DEFAULTS_FILE.read_text(encoding="utf-8"))
    os.environ["SAGEMAKER_ADMIN_CONFIG_OVERRIDE"] = str(DEFAULTS_FILE)
    os.environ["SAGEMAKER_USER_CONFIG_OVERRIDE"] = str(DEFAULTS_FILE)
    # Said once below.
    os.environ["SAGEMAKER_SUPPRESS_V2_WARNING"] = "1"
    # SDK v3 asks IAM about the role with calls that a user of the role need not be allowed.
    os.environ["SAGEMAKER_VALIDATE_ROLE"] = "false"
    _refuse_other_requests(session, request, version)
    if version.startswith("2."):
        logger.warning(
            "SageMaker SDK v2 is supported until 2027-07-06; `make sagemaker-train SDK=3` uses v3"
        )
    # What the SDKs log of a failure, the exception says too.
    logging.disable(logging.ERROR)
    try:
        _sender(version)(request, session, defaults)
    finally:
        logging.disable(logging.NOTSET)


def _sender(version: str) -> Callable[[dict[str, Any], Any, dict[str, Any]], None]:
    sender: Callable[[dict[str, Any], Any, dict[str, Any]], None]
    if version.startswith("2."):
        from launch.aws.sdk.v2 import send as sender
    else:
        from launch.aws.sdk.v3 import send as sender
    return sender


def differences(sent: Any, meant: Any, path: str = "") -> list[str]:
    """Paths at which two requests differ; empty members are the same as none."""
    if isinstance(sent, dict) and isinstance(meant, dict):
        return [
            found
            for key in sorted({*sent, *meant})
            for found in differences(sent.get(key), meant.get(key), f"{path}.{key}".strip("."))
        ]
    if isinstance(sent, list) and isinstance(meant, list) and len(sent) == len(meant):
        return [
            found
            for index, (ours, theirs) in enumerate(zip(sent, meant, strict=True))
            for found in differences(ours, theirs, f"{path}[{index}]")
        ]
    return [] if sent == meant or not (sent or meant) else [path]


def without_harmless(sent: dict[str, Any], meant: dict[str, Any]) -> dict[str, Any]:
    """The request as sent, less the defaults that an SDK adds and that change nothing."""
    cleaned = {**sent}
    for member, defaults in _HARMLESS.items():
        cleaned[member] = {
            key: value
            for key, value in sent.get(member, {}).items()
            if key in meant.get(member, {}) or defaults.get(key) != value
        }
    return cleaned


def _refuse_other_requests(session: Any, meant: dict[str, Any], version: str) -> None:
    def compare(params: dict[str, Any], **_: Any) -> None:
        found = differences(without_harmless(params, meant), meant)
        if found:
            raise LaunchError(
                f"sagemaker {version} would send something else at {', '.join(found)}; nothing was "
                "sent. Install the version pinned in requirements/"
            )

    session.events.register("provide-client-params.sagemaker.CreateTrainingJob", compare)
