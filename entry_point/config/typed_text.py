"""Text settings are what was typed.

Hydra and YAML read a folder `2024_11_27` as a number: only the schema knows what is text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from antlr4 import CommonTokenStream, InputStream  # type: ignore[import-untyped]
from hydra.core.override_parser.overrides_parser import create_functions
from hydra.core.override_parser.overrides_visitor import HydraOverrideVisitor
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException
from hydra.grammar.gen.OverrideLexer import OverrideLexer
from hydra.grammar.gen.OverrideParser import OverrideParser
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from entry_point.config.checking import Node, json_tree
from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import DataConfig

_NUMBER = re.compile(r"[-+]?\.?\d[\w.:+-]*")
"""What YAML may read as a number."""


class _AsTyped(HydraOverrideVisitor):
    """Reads numbers, truth values and null as texts."""

    def _createPrimitive(self, ctx: Any) -> Any:
        value = super()._createPrimitive(ctx)
        if isinstance(value, str | QuotedString):
            return value
        return QuotedString(ctx.getText().strip(), Quote.single)


def as_typed(override: Override) -> Override:
    """Returns an override whose numbers, truth values and null are the texts that were typed."""
    lexer = OverrideLexer(InputStream(override.input_line))
    tree = OverrideParser(CommonTokenStream(lexer)).override()
    with suppress(HydraException):  # a function of numbers, such as range(1,3)
        typed: Override = _AsTyped(create_functions()).visit(tree)
        return typed
    return override


def is_text(key: str, schema: type) -> bool:
    """Returns whether the setting is text, or a list of texts."""
    node = json_tree(schema)
    for name in key.split("."):
        node = _below(node, name)
    return _holds_text(node)


def with_typed_text(
    plain: Any, schema: type, overrides: Iterable[Override], configs: Path
) -> dict[str, Any]:
    """Returns composed settings with the typed text where `schema` has text.

    Raises ConfigError for a text in one of the files in `configs` that YAML has misread.
    """
    typed: dict[str, str] = {}
    for override in overrides:
        if override.value_type is not None:
            typed |= _leaves(as_typed(override).value(), override.key_or_group)

    def settled(value: Any, node: Node, key: str) -> Any:
        if isinstance(value, dict):
            return {name: below(node, name, each, f"{key}.{name}") for name, each in value.items()}
        if isinstance(value, list):
            return [below(node, i, each, f"{key}.{i}") for i, each in enumerate(value)]
        if value is None or isinstance(value, str) or not _holds_text(node):
            return value
        return typed[key] if key in typed else _as_written(key, value, configs)

    def below(node: Node, name: str | int, value: Any, key: str) -> Any:
        inner, key = _below(node, name), key.lstrip(".")
        if value is None and inner == {"type": "string"}:  # a variable or a tag, not a setting
            return typed.get(key)
        return settled(value, inner, key)

    settings: dict[str, Any] = settled(plain, json_tree(schema), "")
    return settings


def _leaves(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yields the values below a key by their dotted keys."""
    if isinstance(value, dict | list):
        below = value.items() if isinstance(value, dict) else enumerate(value)
        for name, each in below:
            yield from _leaves(each, f"{key}.{name}")
    else:
        yield key, value


def _below(node: Node, name: str | int) -> Node:
    """Returns the node of the setting, the value or the item that a node has by this name."""
    if name == "data":  # some programs take any settings of it
        return json_tree(DataConfig)
    if isinstance(name, int):
        inner = node.get("items")
    else:
        inner = node.get("properties", {}).get(name) or node.get("additionalProperties")
    return inner if isinstance(inner, dict) else {}


def _holds_text(node: Node) -> bool:
    """Returns whether a setting is text, or a list of texts."""
    return node.get("items", node).get("type") == "string"


def _as_written(key: str, value: float, configs: Path) -> float:
    """Returns a number of a file, whose digits are the text. Raises ConfigError if the files have
    another text for this number, and for a truth value."""
    files = [file.read_text("utf-8", "replace") for file in configs.rglob("*.yaml")]
    texts = {text for file in files for text in _NUMBER.findall(file)}
    misread = [text for text in sorted(texts - {str(value)}) if _yaml_reads(text) == repr(value)]
    if misread or isinstance(value, bool):
        example = f", as in '{misread[0]}'" if misread else ""
        message = f"YAML has read a text without quotes; write it in quotes in its file{example}"
        raise ConfigError(key, value, message)
    return value


def _yaml_reads(text: str) -> str:
    with suppress(yaml.YAMLError, OmegaConfBaseException):
        return repr(OmegaConf.select(OmegaConf.create(f"x: {text.rstrip(':')}"), "x"))
    return ""
