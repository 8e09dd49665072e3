"""Writes a value as an override has it: as the text that `compose` reads back as this value."""

from __future__ import annotations

import json
import re

_TYPED_WORDS = {"true", "false", "null", "none", "nan", "inf"}
# Paths and words that a setting of text takes without quotes, as `compose` parses them.
_PLAIN = re.compile(r"""(\.{0,2}/[^'",\[\]{}\\\n\t]*|[A-Za-z_][^'",\[\]{}()\\\n\t]*)(?<! )""")
# What Hydra's grammar reads as one text in a list.
_PLAIN_ITEM = re.compile(r"[A-Za-z_][A-Za-z0-9_\-./]*")


def spell(value: object) -> str:
    """Returns the text behind `key=` for a text, a number, a truth value, null or a list of
    these."""
    return _spell(value, _PLAIN)


def _spell(value: object, plain: re.Pattern[str]) -> str:
    if isinstance(value, list):
        return "[" + ",".join(_spell(item, _PLAIN_ITEM) for item in value) + "]"
    if not isinstance(value, str):
        return json.dumps(value)
    is_plain = plain.fullmatch(value) and value.lower() not in _TYPED_WORDS
    return value if is_plain else quote(value)


def quote(text: str) -> str:
    """Returns a quoted text in Hydra's grammar, with quotes and the backslashes before them
    escaped.

    `${` is escaped too: OmegaConf would read an interpolation.
    """
    text = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    text = re.sub(r"(\\*)'", r"\1\1\\'", text)
    text = re.sub(r"(\\+)\Z", r"\1\1", text)
    return f"'{text}'"
