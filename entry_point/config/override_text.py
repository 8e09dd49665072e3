"""Writes values for overrides, as texts that `parse_overrides` reads back as these values.

Does not import Hydra, as programs that use only the loader also print commands.
"""

from __future__ import annotations

import re
from functools import partial

from entry_point.config.config_errors import shown

_TYPED_WORDS = {"true", "false", "null", "none", "nan", "inf"}
# Paths and words that `parse_overrides` reads as text without quotes.
_PLAIN = re.compile(r"""(\.{0,2}/[^'",\[\]{}\\\n\t]*|[A-Za-z_][^'",\[\]{}()\\\n\t]*)(?<! )""")
# Texts that Hydra's grammar reads as one item of a list.
_PLAIN_ITEM = re.compile(r"[A-Za-z_][A-Za-z0-9_\-./]*")


def spell(value: object) -> str:
    """Returns the text after `key=` for a value, with quotes around texts that need them."""
    if isinstance(value, str):
        return _quote_unless(_PLAIN, value)
    return shown(value, partial(_quote_unless, _PLAIN_ITEM))


def _quote_unless(plain: re.Pattern[str], text: str) -> str:
    is_plain = plain.fullmatch(text) and text.lower() not in _TYPED_WORDS
    return text if is_plain else quote(text)


def quote(text: str) -> str:
    """Returns a quoted text in Hydra's grammar, with quotes and the backslashes before them
    escaped.

    `${` is also escaped, which OmegaConf would read as an interpolation.
    """
    text = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    text = re.sub(r"(\\*)'", r"\1\1\\'", text)
    text = re.sub(r"(\\+)\Z", r"\1\1", text)
    return f"'{text}'"
