"""Refuses credentials in settings: a run writes its settings to its log, model, report and loggers.

Uses the standard library only, as `ConfigError` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from entry_point.config.config_errors import ConfigError

# `user:password@` or `token@` after a scheme.
_CREDENTIALS = re.compile(r"""\b[a-z][\w+.-]+://[^\s/?#"<>]+@""", re.IGNORECASE)
# What these keys hold are environment variables.
_ENVIRONMENT = re.compile(r"(job\.)?environment\b")


def refuse_in_overrides(overrides: Iterable[str]) -> None:
    """Raises ConfigError for the first override with credentials; it names the key only."""
    for override in overrides:
        refuse_in_value(override.partition("=")[0].lstrip("+~"), override)


def refuse_in_value(key: str, value: object) -> None:
    """Raises ConfigError for a value with credentials; it names only `key`, or the one below it."""
    if isinstance(value, dict):
        for name, item in value.items():
            refuse_in_value(f"{key}.{name}".lstrip("."), item)
    elif isinstance(value, list):
        for item in value:
            refuse_in_value(key, item)
    elif not _ENVIRONMENT.match(key) and _CREDENTIALS.search(str(value)):
        named = "an argument" if _CREDENTIALS.search(key) else key
        message = "put it into an environment variable (on SageMaker, job.environment.NAME)"
        raise ConfigError(named, message=f"has credentials in a URI: {message}")
