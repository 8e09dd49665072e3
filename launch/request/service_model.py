"""Validates a request against botocore's service model, including its limits.

botocore checks only types, required members and minimums. The model also has `max`, `pattern` and
`enum`, which otherwise only the service enforces. This module checks all of them before anything is
sent and reports every problem at once.
"""

import difflib
import functools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import botocore
import botocore.loaders
from botocore.model import ServiceModel, Shape

_TYPES: dict[str, type] = {
    "structure": dict,
    "map": dict,
    "list": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "long": int,
}
_UNITS: dict[type, str] = {str: "characters", list: "entries", dict: "entries"}
# Character classes of Java that the service's patterns use, in Python's syntax.
_JAVA_CLASSES = {r"\p{L}\p{Z}\p{N}": r"\w\s", r"\p{Alnum}": "a-zA-Z0-9"}


class Problem(NamedTuple):
    """One invalid member of a request; a path looks like `ResourceConfig.InstanceType`."""

    path: str
    value: Any
    """The invalid value; None if it is missing or too long to show."""
    reason: str


@functools.cache
def input_shape(operation: str) -> Shape:
    """The input shape of a SageMaker operation in botocore's service model."""
    description = botocore.loaders.Loader().load_service_model("sagemaker", "service-2")
    return ServiceModel(description).operation_model(operation).input_shape


def problems(request: dict[str, Any], operation: str) -> list[Problem]:
    """Every violation of the service model in the request."""
    return list(_walk(request, input_shape(operation), ""))


def _walk(value: Any, shape: Shape, path: str) -> Iterator[Problem]:
    expected: type[Any] = _TYPES[shape.type_name]
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is int):
        yield Problem(path, value, f"must be of type {shape.type_name}")
        return
    yield from _size_problem(value, shape, path)
    if shape.type_name == "structure":
        yield from _structure_problems(value, shape, path)
    elif shape.type_name == "map":
        for key, member in value.items():
            yield from _walk(key, shape.key, f"{path}.{key}")
            yield from _walk(member, shape.value, f"{path}.{key}")
    elif shape.type_name == "list":
        for index, member in enumerate(value):
            yield from _walk(member, shape.member, f"{path}[{index}]")
    elif shape.type_name == "string":
        yield from _text_problem(value, shape, path)


def _structure_problems(value: dict[str, Any], shape: Shape, path: str) -> Iterator[Problem]:
    for name in shape.required_members:
        if name not in value:
            yield Problem(f"{path}.{name}".strip("."), None, "is missing")
    for name, member in value.items():
        inner = f"{path}.{name}".strip(".")
        if name in shape.members:
            yield from _walk(member, shape.members[name], inner)
        else:
            yield Problem(inner, member, "is not a member of the request")


def _size_problem(value: Any, shape: Shape, path: str) -> Iterator[Problem]:
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        size, shown, must = value, value, "must be"
    else:
        size, shown = len(value), None
        must = f"has {size} {_UNITS[type(value)]}, must have"
    limits = shape.metadata
    if size < limits.get("min", size):
        yield Problem(path, shown, f"{must} at least {limits['min']}")
    if size > limits.get("max", size):
        yield Problem(path, shown, f"{must} at most {limits['max']}")


def _text_problem(value: str, shape: Shape, path: str) -> Iterator[Problem]:
    allowed = shape.metadata.get("enum")
    pattern = shape.metadata.get("pattern")
    if allowed and value not in allowed:
        near = difflib.get_close_matches(value, allowed, n=3) or sorted(allowed)[:8]
        yield Problem(
            path,
            value,
            f"must be one of the {len(allowed)} values in botocore {botocore.__version__}: "
            f"{', '.join(near)}{', ...' if len(near) < len(allowed) else ''}",
        )
    elif pattern and not _compiled(pattern).fullmatch(value):
        yield Problem(path, value, f"must match {pattern}")


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    for java, python in _JAVA_CLASSES.items():
        pattern = pattern.replace(java, python)
    return re.compile(pattern)
