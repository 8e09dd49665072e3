"""`ConfigError`: a setting that is wrong.

Uses the standard library only, because `make docker-train` runs before anything is installed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from entry_point.config.retired import retired
from entry_point.job.program import UserError

_NO_VALUE = object()


class ConfigError(UserError, ValueError):
    """One line: the key and its value as the user would type them, what is allowed, what to do."""

    def __init__(self, key: str, value: object = _NO_VALUE, message: str = "") -> None:
        """The text is `key=value: must`, or `key: must` for a key without a value.

        For a key or value that is retired, `must` is what to use instead.
        """
        typed = key if value is _NO_VALUE else f"{key}={shown(value)}"
        message = retired(key, typed) or message
        super().__init__(f"{typed}: {message}" if message else typed)


def shown(value: object) -> str:
    """Return a value in Hydra's syntax: `null`, `true`, `[0.9,0.999]`, `{fc.*:{lr:0.1}}`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(shown, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{shown(each)}' for key, each in value.items())}}}"
    return str(value)


def near(value: str, allowed: Iterable[str]) -> str:
    """Return `; did you mean X?` for the allowed value closest to a typo, else nothing."""
    match = difflib.get_close_matches(value, list(allowed), n=1)
    return f"; did you mean {match[0]}?" if match else ""
