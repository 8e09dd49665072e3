"""Settings as they were typed, for a host where Hydra is not installed.

What a file of `configs/` sets is not known; the job itself checks that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

_OVERRIDE = re.compile(r"\+{0,2}([\w/.]+)=(.*)", re.DOTALL)
_LIST = re.compile(r"\[(.*)\]", re.DOTALL)
# A choice of a group of configs/ that is also the value of a setting.
_GROUPS = {"pipeline": "pipeline.engine"}


def typed_settings(overrides: Sequence[str]) -> Callable[[str], Any]:
    """Return a function from a setting's key to its value: text, a list of texts, or None.

    For the parent of typed keys, such as `model.kwargs`, the value is a dict.
    """
    typed: dict[str, Any] = {}
    for override in overrides:
        if match := _OVERRIDE.fullmatch(override):
            key, text = match[1].replace("/", "."), match[2]
            items = _LIST.fullmatch(text)
            parts = items[1].split(",") if items else ()
            typed[_GROUPS.get(key, key)] = [*map(_plain, parts)] if items else _plain(text)

    def value(key: str) -> Any:
        if key in typed:
            return typed[key]
        start = f"{key}."
        below = {name: typed[name] for name in typed if name.startswith(start)}
        return {name.removeprefix(start): each for name, each in below.items()} or None

    return value


def _plain(text: str) -> str:
    return text.strip().strip("'\"")
