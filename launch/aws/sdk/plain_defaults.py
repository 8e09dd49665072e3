"""The defaults file that replaces the SDKs' own: nothing is injected, no telemetry is sent."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DEFAULTS_FILE = Path(__file__).with_name("sagemaker_defaults.yaml")
_ENVIRONMENT = {
    "SAGEMAKER_ADMIN_CONFIG_OVERRIDE": str(DEFAULTS_FILE),
    "SAGEMAKER_USER_CONFIG_OVERRIDE": str(DEFAULTS_FILE),
    # The warning of `open_trainer` replaces it.
    "SAGEMAKER_SUPPRESS_V2_WARNING": "1",
    # SDK v3 validates the role with IAM calls that the user may not be allowed to make.
    "SAGEMAKER_VALIDATE_ROLE": "false",
}


def read_defaults() -> dict[str, Any]:
    """The file's content, for the SDK's session."""
    import yaml  # a dependency of both SDKs

    defaults: dict[str, Any] = yaml.safe_load(DEFAULTS_FILE.read_text(encoding="utf-8"))
    return defaults


@contextmanager
def plain_defaults() -> Iterator[None]:
    """Let the SDK use our defaults file; the caller's other use of the SDK keeps theirs."""
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
