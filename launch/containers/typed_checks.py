"""What can be checked of a job before its container starts, from the typed settings alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from launch.containers.container_run import say
from launch.request.code.typed_settings import typed_settings
from launch.request.known.image_extras import LABEL, missing_extras, needed_extras
from launch.request.launch_errors import LaunchError


def require_usable(overrides: Sequence[str], image: str, description: Mapping[str, Any]) -> None:
    """Raise LaunchError if typed settings need a package that the image lacks.

    `description` is the engine's. The job checks all settings, also those of files in `configs/`.
    """
    setting = typed_settings(overrides)
    label = ((description.get("Config") or {}).get("Labels") or {}).get(LABEL)
    missing, warning = missing_extras(f"the image {image}", label, needed_extras(setting))
    if missing:
        raise LaunchError(*missing)
    if warning:
        say(warning)
