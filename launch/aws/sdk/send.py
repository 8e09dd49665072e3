"""Sends a CreateTrainingJob request with the installed `sagemaker` SDK, v2 or v3.

The SDKs add defaults. The request is passed member by member, and just before the SDK sends its own
version, that is compared with the request: if they differ, nothing is sent.
"""

import logging
import os
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from launch.request.launch_errors import LaunchError

DEFAULTS_FILE = Path(__file__).with_name("sagemaker_defaults.yaml")
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
            "which installs requirements/launch.txt into .venv-launch"
        ) from None


def send_request(request: dict[str, Any], session: Any) -> None:
    """Create the training job with the installed SDK.

    `session` is a boto3 session with a region. Raises LaunchError, before anything is sent, if the
    SDK would send a different request; AWS errors pass through.
    """
    version = installed_version()
    import yaml  # a dependency of both SDKs

    defaults = yaml.safe_load(DEFAULTS_FILE.read_text(encoding="utf-8"))
    os.environ["SAGEMAKER_ADMIN_CONFIG_OVERRIDE"] = str(DEFAULTS_FILE)
    os.environ["SAGEMAKER_USER_CONFIG_OVERRIDE"] = str(DEFAULTS_FILE)
    # The warning below replaces it.
    os.environ["SAGEMAKER_SUPPRESS_V2_WARNING"] = "1"
    # SDK v3 validates the role with IAM calls that the user may not be allowed to make.
    os.environ["SAGEMAKER_VALIDATE_ROLE"] = "false"
    _compare_before_sending(session, request, version)
    if version.startswith("2."):
        logger.warning(
            "support for SageMaker SDK v2 ends on 2027-07-06; `make sagemaker-train SDK=3` uses v3"
        )
    # The SDKs log failures that the exception reports anyway.
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


def _compare_before_sending(session: Any, meant: dict[str, Any], version: str) -> None:
    def compare(params: dict[str, Any], **_: Any) -> None:
        found = differences(without_harmless(params, meant), meant)
        if found:
            raise LaunchError(
                f"sagemaker {version} would send a different request ({', '.join(found)}); nothing "
                "was sent; install the version pinned in requirements/"
            )

    session.events.register("provide-client-params.sagemaker.CreateTrainingJob", compare)
