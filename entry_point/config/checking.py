"""Checks settings with pydantic: each mistake becomes a line `key=value: PYDANTIC'S SENTENCE`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from entry_point.config.config_errors import ConfigError, did_you_mean

T = TypeVar("T")
Node = Mapping[str, Any]
"""The JSON schema of a setting, or of a class of settings."""
_FOR_LAUNCH = ("target", "job", "resume_from")
_MOST_NAMED = 9
"""Most keys that a line lists."""


def check_config(plain: Any, schema: type[T], group: str = "", context: str = "") -> T:
    """Return `plain` as a checked `schema`; raises ConfigError, with `group` before the keys.

    `context` is TYPED_HERE or empty.
    """
    try:
        return TypeAdapter(schema).validate_python(plain, context=context)
    except ValidationError as error:
        first, *others = (_explain(each, schema, group) for each in error.errors(include_url=False))
        first.args += tuple(map(str, others))
        raise first from error


def _explain(mistake: Any, schema: type, group: str) -> ConfigError:
    """Returns an error with the key and value as typed, and pydantic's sentence."""
    kind, context, value = mistake["type"], mistake.get("ctx", {}), mistake["input"]
    if isinstance(own := context.get("error"), ConfigError):  # names the key already
        return own
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in mistake["loc"])
    path = "".join(parts).lstrip(".")
    message = mistake["msg"]
    is_unknown = kind in ("unexpected_keyword_argument", "extra_forbidden")
    if is_unknown:
        message = _meant(path, schema, group)
    elif kind == "dataclass_type" or path == "data":
        message = f"is a group of settings: set {as_setting(path, value, schema)}"
    elif kind == "missing":
        message = f"has no value; add {path}=PATH"
    elif kind == "string_type" and isinstance(value, int | float):
        message += "; in a file of configs/, write the text in quotes"
    else:
        message += did_you_mean(str(value), re.findall("'(.*?)'", context.get("expected", "")))
    key = f"{group}.{path}".strip(".")
    if isinstance(value, dict) and (is_unknown or kind == "missing"):  # a whole group
        return ConfigError(key, message=message)
    return ConfigError(key, value, message)


def as_setting(group: str, word: object, schema: type) -> str:
    """Returns how to type a word that is not an option of a group: as its `name`, or a path as its
    `root`, if it has one."""
    node = json_tree(schema)
    for name in group.split("."):
        node = node.get("properties", {}).get(name, {})
    key = "root" if "/" in str(word) and "root" in node.get("properties", {}) else "name"
    return f"{group}.{key}={word}" if key in node.get("properties", {}) else f"{group}.KEY=VALUE"


def _meant(path: str, schema: type, group: str) -> str:
    """Returns the message for a key that does not exist, with keys that may be meant."""
    leaves = [key for key, _ in settings_of(json_tree(schema))]
    keys = [*{key.rpartition(".")[0]: None for key in leaves if "." in key}, *leaves]
    above, _, name = path.rpartition(".")
    top = path.partition(".")[0]
    if not group and top in _FOR_LAUNCH and top not in keys:
        return "is a setting of `make sagemaker-train`; remove it"
    if path in keys:
        return f"no such key; a file nests keys: write {above}: {{{name}: VALUE}}"
    same = [key for key in keys if key.rpartition(".")[2] == name]
    beside = {key.rpartition(".")[2]: key for key in keys if key.rpartition(".")[0] == above}
    near_by = [beside[each] for each in difflib.get_close_matches(name, beside, n=1)]
    if meant := same or near_by:
        typed = (f"{group}.{key}".lstrip(".") for key in meant[:3])
        return f"no such key; did you mean {' or '.join(typed)}?"
    if len(keys) <= _MOST_NAMED:
        return f"no such key; {group or 'there'} has {', '.join(keys)}"
    return "no such key; docs/settings.md lists all"


@cache
def json_tree(schema: Any) -> Node:
    """Returns the JSON schema of a class of settings, with references replaced by their content,
    and optional settings merged with their type other than null."""
    whole = TypeAdapter(schema).json_schema()
    return _replaced(whole, whole.get("$defs", {}))


def _replaced(node: Any, definitions: Mapping[str, Any]) -> Any:
    for each in node.get("anyOf", ()):
        if each != {"type": "null"}:
            node = {**node, **each}
    if "$ref" in node:
        node = {**definitions[node["$ref"].rpartition("/")[2]], **node}
    inner = {
        name: _replaced(node[name], definitions)
        for name in ("items", "additionalProperties")
        if isinstance(node.get(name), dict)
    }
    settings = node.get("properties", {})
    if settings:
        inner["properties"] = {k: _replaced(each, definitions) for k, each in settings.items()}
    return {**node, **inner}


def settings_of(tree: Node, prefix: str = "") -> Iterator[tuple[str, Node]]:
    """Yields each setting of a class, and of the classes in it, with its dotted key."""
    for name, node in tree.get("properties", {}).items():
        if "properties" in node:
            yield from settings_of(node, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", node
