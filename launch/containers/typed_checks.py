"""What can be checked of a job before its container starts, from the typed settings alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from launch.command_line import LaunchError
from launch.containers.container_run import say
from launch.image_extras import LABEL, missing_extras, needed_extras
from launch.request.code.typed_settings import typed_settings


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
