"""Text settings are what was typed.

Hydra and YAML read a folder `2024_11_27` as a number: only the schema knows what is text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

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


def is_text(key: str, schema: Any) -> bool:
    """Returns whether the setting is text, or a list of texts."""
    for name in key.split("."):
        schema = _below(schema, name)
    return _holds_text(schema)


def with_typed_text(
    plain: Any, schema: Any, overrides: Iterable[Override], configs: Path
) -> dict[str, Any]:
    """Returns composed settings with the typed text where `schema` has text.

    Raises ConfigError for a text in one of the files in `configs` that YAML has misread.
    """
    typed: dict[str, str] = {}
    for override in overrides:
        if override.value_type is not None:
            typed |= _leaves(as_typed(override).value(), override.key_or_group)
    settled: dict[str, Any] = _settled(plain, schema, "", typed, configs)
    return settled


def _leaves(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yields the values below a key by their dotted keys."""
    if isinstance(value, dict | list):
        below = value.items() if isinstance(value, dict) else enumerate(value)
        for name, each in below:
            yield from _leaves(each, f"{key}.{name}")
    else:
        yield key, value


def _settled(value: Any, kind: Any, key: str, typed: Mapping[str, str], configs: Path) -> Any:
    def below(name: str | int, each: Any) -> Any:
        path = f"{key}.{name}".lstrip(".")
        if each is None and get_args(kind) == (str, str):  # a variable or a tag
            return typed.get(path)
        return _settled(each, _below(kind, name), path, typed, configs)

    if isinstance(value, dict):
        return {name: below(name, each) for name, each in value.items()}
    if isinstance(value, list):
        return [below(number, each) for number, each in enumerate(value)]
    if value is None or isinstance(value, str) or not _holds_text(kind):
        return value
    return typed[key] if key in typed else _as_written(key, value, configs)


def _holds_text(kind: Any) -> bool:
    """Returns whether a type is text, or a list of texts."""
    kind = _bare(_below(kind, 0)) if get_origin(_bare(kind)) is list else _bare(kind)
    return kind is str or get_origin(kind) is Literal


def _below(kind: Any, name: str | int) -> Any:
    """Returns the type of the setting, the value or the item that a type has by this name."""
    kind = _bare(kind)
    if fields := getattr(kind, "__pydantic_fields__", None):
        if name == "data":  # some programs take any settings of it
            return DataConfig
        return fields[name].annotation if name in fields else Any
    return get_args(kind)[-1] if get_origin(kind) in (dict, list) else Any


def _bare(kind: Any) -> Any:
    """Returns a type without null and without what is annotated."""
    while get_origin(kind) in (Annotated, Union, UnionType):
        kind = next(each for each in get_args(kind) if each is not type(None))
    return kind


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
