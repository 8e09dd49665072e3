"""Checks settings with pydantic, whose errors become a `ConfigError`: a line for each wrong one.

What is allowed is worded from the JSON schema of the settings, as in docs/settings.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from entry_point.config.config_errors import ConfigError, near

T = TypeVar("T")
Node = Mapping[str, Any]
"""What a JSON schema says of a setting, or of a class of settings."""
_OF_LAUNCH = ("target", "job", "resume_from")
"""The keys of configs/launch.yaml, which no job has."""
_FOR_LAUNCH = "is a setting of `make sagemaker-train`; remove it"
_MOST_NAMES, _MOST_SUGGESTED = 9, 3
"""Nobody reads longer lists."""
# Type of pydantic's error -> the words after "must be"; `allowed` words the other types.
_MUST_BE = {
    "finite_number": "finite",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "names with values, as in {name: value}",
}
_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}


def check_config(plain: Mapping[str, Any], schema: type[T], group: str = "") -> T:
    """Return `plain` as a checked `schema`, whose keys are below `group`; raises ConfigError."""
    try:
        return TypeAdapter(schema).validate_python(plain)
    except ValidationError as error:
        raise explain(error, schema, group) from error


def explain(error: ValidationError, schema: type, group: str = "") -> ConfigError:
    """Returns one ConfigError with a line for each mistake in the settings of `schema`."""
    whole = TypeAdapter(schema).json_schema()
    first, *others = (_explain(each, whole, group) for each in error.errors(include_url=False))
    first.args += tuple(str(each) for each in others)
    return first


def _explain(mistake: Any, whole: Node, group: str) -> ConfigError:
    kind, path, value = mistake["type"], mistake["loc"], mistake["input"]
    key = dotted(path, group)
    if kind == "value_error":  # a check of our own has named the key
        own = mistake["ctx"]["error"]
        return own if isinstance(own, ConfigError) else ConfigError(key, value, str(own))
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        return _unknown_key(path, value, whole, group)
    if kind in ("missing", "missing_argument"):
        return ConfigError(key, message=f"has no value; add {key}=VALUE")
    if kind == "dataclass_type":
        return ConfigError(key, value, f"must name a key, as in {key}.NAME=VALUE")
    if kind in _MUST_BE:
        return ConfigError(key, value, f"must be {_MUST_BE[kind]}")
    node = node_at(path, whole)
    if words := allowed(node):
        return ConfigError(key, value, f"must be {words}{near(str(value), choices(node))}")
    return ConfigError(key, value, mistake["msg"])


def dotted(path: Sequence[str | int], group: str = "") -> str:
    """Returns the key as typed; an item of a list has its number in brackets."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return f"{group}{''.join(parts)}".lstrip(".")


def allowed(node: Node) -> str:
    """Returns the words after "must be"; empty if any value of the type is allowed."""
    if words := choices(node):
        return f"one of {', '.join(words)}" if words[1:] else words[0]
    if "minItems" in node:
        each = allowed(node["items"])
        return f"{node['minItems']} numbers" + (f", each {each}" if each else "")
    bounds = {word: node[name] for name, word in _BOUNDS.items() if name in node}
    # 1 for 1.0
    return " and ".join(f"{word} {limit:.20g}" for word, limit in bounds.items())


def choices(node: Node) -> list[str]:
    """Returns the words that a setting, or each of its items, may be; none if it is not about
    words."""
    node = node.get("items", node)
    words: list[str] = node.get("enum", [node["const"]] if "const" in node else [])
    return words


def node_at(path: Iterable[str | int], whole: Node) -> Node:
    """Returns the node of the setting, or of the item of a list, with this path."""
    node = settled(whole, whole)
    for part in path:
        if isinstance(part, str):
            below = node.get("properties", {}).get(part) or node.get("additionalProperties")
            node = settled(below if isinstance(below, dict) else {}, whole)
        else:
            node = settled(node.get("items", {}), whole)
    return node


def settled(node: Node, whole: Node) -> Node:
    """Returns a node without the null that a setting may be, and without a reference."""
    for each in node.get("anyOf", ()):
        if each != {"type": "null"}:
            node = {**node, **each}
    if "$ref" in node:
        return {**whole["$defs"][node["$ref"].rpartition("/")[2]], **node}
    return node


def _unknown_key(path: Sequence[str | int], value: object, whole: Node, group: str) -> ConfigError:
    """Says what else the user may have meant."""
    key, above, name = dotted(path, group), dotted(path[:-1], group), str(path[-1])
    same = [each for each in dotted_keys(whole, whole) if each.endswith(f".{name}")]
    known = list(node_at(path[:-1], whole).get("properties", ()))
    elsewhere = len(path) == 1 or not near(name, known)
    if "." in name:
        first, _, rest = name.partition(".")
        message = f"a file nests keys: write {first}: {{{rest}: VALUE}}"
    elif elsewhere and not group and 0 < len(same) <= _MOST_SUGGESTED:
        message = f"no such key; did you mean {' or '.join(same)}?"
    elif not above and name in _OF_LAUNCH:
        message = _FOR_LAUNCH
    elif advice := near(name, known):
        message = f"no such key{advice}"
    elif 0 < len(known) <= _MOST_NAMES:
        message = f"no such key; {above or 'the top level'} has {', '.join(known)}"
    else:
        message = f"no such key; docs/settings.md lists those of {above or 'the top level'}"
    return (
        ConfigError(key, message=message)
        if isinstance(value, dict)
        else ConfigError(key, value, message)
    )


def no_such_option(group: str) -> str:
    """Returns the words after `group=OPTION`, where a command has no options of that group."""
    if group in _OF_LAUNCH:
        return _FOR_LAUNCH
    return f"no such option here; its keys are set as in {group}.NAME=VALUE"


def dotted_keys(node: Node, whole: Node, prefix: str = "") -> Iterator[str]:
    """Yields the dotted keys of a class of settings and of those in it."""
    for name, below in node.get("properties", {}).items():
        yield f"{prefix}{name}"
        yield from dotted_keys(settled(below, whole), whole, f"{prefix}{name}.")
