"""The commands that programs print, made of their settings.

Uses the standard library only, as `ConfigError` does.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from entry_point.job.hyperparameters import TYPED_WORDS, spell

# Paths and words that a setting of text takes without quotes, as `compose` parses them.
_PLAIN = re.compile(r"""(\.{0,2}/[^'",\[\]{}\\\n\t]*|[A-Za-z_][^'",\[\]{}()\\\n\t]*)(?<! )""")
# Within double quotes, a shell gives these a meaning.
_SPECIAL = re.compile(r'["$`\\!]')


def make(target: str, settings: Mapping[str, Any], *words: str) -> str:
    """Returns the command that runs `target` with these words and settings, as typed into a shell.

    A shell reads them twice, before make and after it; make reads `$` as a variable.
    """
    arguments = [*words, *(f"{key}={_typed(value)}" for key, value in settings.items())]
    typed = shlex.join(arguments).replace("$", "$$")
    quoted = shlex.quote(typed) if _SPECIAL.search(typed) else f'"{typed}"'
    return f"make {target} ARGS={quoted}"


def _typed(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in TYPED_WORDS:
        return value
    return spell(value)


def changes(
    values: Mapping[str, Any], defaults: Mapping[str, Any], group: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yields the settings that differ from the defaults, by their dotted keys."""
    for name, value in values.items():
        default = defaults.get(name, ...)
        if isinstance(value, dict):
            below = default if isinstance(default, dict) else {}
            yield from changes(value, below, f"{group}{name}.")
        elif value != default:
            yield f"{group}{name}", value
