"""Parses overrides; `override_text.py` writes them.

The grammar is Hydra's, with two additions. Values of text settings are taken as typed: Hydra reads
a folder `2024_11_27` as a number, and only the schema knows which settings are text. And paths need
no quotes: without them, Hydra accepts only ASCII letters, and none of `=(){}#&~`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from antlr4 import CommonTokenStream, InputStream  # type: ignore[import-untyped]
from hydra.core.override_parser.overrides_parser import OverridesParser, create_functions
from hydra.core.override_parser.overrides_visitor import HydraOverrideVisitor
from hydra.core.override_parser.types import Override, QuotedString
from hydra.errors import HydraException
from hydra.grammar.gen.OverrideLexer import OverrideLexer
from hydra.grammar.gen.OverrideParser import OverrideParser

from entry_point.config.checking import Node, json_tree
from entry_point.config.config_errors import ConfigError, refuse_in_overrides
from entry_point.config.data_config import DataConfig
from entry_point.config.override_text import quote, spell

# No list, dictionary, sweep, quotes or interpolation; commas only alone or within braces.
_PLAIN_TEXT = r"""(?![\[{])(?!.*\$\{)([^'",{]|\{[^'"{}]*\})*|,"""


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse overrides; raises ConfigError for the first that is invalid, or has credentials."""
    refuse_in_overrides(overrides)
    parser = OverridesParser.create()
    return [_parse(parser, override) for override in overrides]


def _parse(parser: OverridesParser, override: str) -> Override:
    """Returns the parsed override. A value that Hydra cannot parse is read as a JSON object or, if
    it matches _PLAIN_TEXT, as text: s3://bucket/year=2024/, photos (1), photos-{000..146}.tar."""
    try:
        return parser.parse_override(override)
    except HydraException as error:
        key, equals, value = override.partition("=")
        with suppress(HydraException):
            if equals and value.startswith("{"):
                with suppress(ValueError):
                    return parser.parse_override(f"{key}={spell(json.loads(value))}")
            if equals and re.fullmatch(_PLAIN_TEXT, value):
                return parser.parse_override(f"{key}={quote(value)}")
        message = "not an override as in key=value; put a value with blanks into single quotes, "
        message += r"one with any of ,[]{} into \'such\', and no blanks around ="
        raise ConfigError(override, message=message) from error


class _AsTyped(HydraOverrideVisitor):
    """Reads numbers, truth values and null as texts."""

    def _createPrimitive(self, ctx: Any) -> Any:
        value = super()._createPrimitive(ctx)
        return value if isinstance(value, str | QuotedString) else ctx.getText().strip()


def as_typed(override: Override) -> Override:
    """Returns an override with numbers, truth values and null as the texts that were typed."""
    lexer = OverrideLexer(InputStream(override.input_line))
    tree = OverrideParser(CommonTokenStream(lexer)).override()
    with suppress(HydraException):  # for functions of numbers, such as range(1,3)
        typed: Override = _AsTyped(create_functions()).visit(tree)
        return typed
    return override


def typed_value(override: Override, schema: type) -> Any:
    """Returns an override's value, with texts as typed where `schema` has text settings."""
    node = json_tree(schema)
    for name in override.key_or_group.split("."):
        node = _below(node, name)
    text = (override.input_line or "").partition("=")[2]
    # The shell has removed the quotes around a blank, which Hydra would drop. Paths have minLength.
    if text.isspace() and "minLength" not in node:
        return text
    return _chosen(override.value(), as_typed(override).value(), node)


def _chosen(read: Any, typed: Any, node: Node) -> Any:
    if isinstance(read, dict):
        names = typed if node.get("type") == "object" else read
        both = zip(names, read.values(), typed.values(), strict=True)
        return {name: _chosen(each, text, _below(node, name)) for name, each, text in both}
    if isinstance(read, list):
        items = node.get("items", {})
        return [_chosen(each, text, items) for each, text in zip(read, typed, strict=True)]
    if read is None:  # `null` is a text only in environment variables and tags
        return typed if node == {"type": "string"} else None
    return typed if node.get("items", node).get("type") == "string" else read


def _below(node: Node, name: str) -> Node:
    """Returns the node below `node` for the setting of this name."""
    if name == "data":  # some programs take all settings of `data`
        return json_tree(DataConfig)
    inner = node.get("properties", {}).get(name) or node.get("additionalProperties")
    return inner if isinstance(inner, dict) else {}
