"""`ConfigError`: a setting is wrong, or holds credentials.

Credentials are refused because a run writes its settings to its log, model, report and loggers.
Uses the standard library only, because `make docker-train` runs before anything is installed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable

from entry_point.config.retired import retired
from entry_point.job.program import UserError

_NO_VALUE = object()
# `user:password@` or `token@` after a scheme.
_CREDENTIALS = re.compile(r"""\b[a-z][\w+.-]+://[^\s/?#"<>]+@""", re.IGNORECASE)
# Keys of environment variables, which may hold credentials.
_ENVIRONMENT = re.compile(r"(job\.)?environment\b")


class ConfigError(UserError, ValueError):
    """One line: the key and its value as the user would type them, what is allowed, what to do."""

    def __init__(self, key: str, value: object = _NO_VALUE, message: str = "") -> None:
        """The text is `key=value: message`, or `key: message` for a key without a value.

        For a retired key or value, the message is what to use instead.
        """
        typed = key if value is _NO_VALUE else f"{key}={shown(value)}"
        message = retired(key, typed) or message
        super().__init__(f"{typed}: {message}" if message else typed)


def shown(value: object, write: Callable[[str], str] = str) -> str:
    """Return a value in Hydra's syntax: `null`, `true`, `[0.9,0.999]`, `{fc.*:{lr:0.1}}`; `write`
    converts its texts."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{','.join(shown(each, write) for each in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{shown(each, write)}' for key, each in value.items())}}}"
    return write(value) if isinstance(value, str) else str(value)


def did_you_mean(value: str, allowed: Iterable[str]) -> str:
    """Return `; did you mean X?` with the allowed value closest to a typo, ignoring case; empty if
    none is close."""
    known = {each.lower(): each for each in allowed}
    match = difflib.get_close_matches(value.lower(), known, n=1)
    return f"; did you mean {known[match[0]]}?" if match else ""


def refuse_in_overrides(overrides: Iterable[str]) -> None:
    """Raise ConfigError for the first override with credentials; the message names only the key."""
    for override in overrides:
        refuse_in_value(override.partition("=")[0].lstrip("+~"), override)


def refuse_in_value(key: str, value: object) -> None:
    """Raise ConfigError for a value with credentials; it names only `key`, or a key below it."""
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
