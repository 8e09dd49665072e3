"""A request held against botocore's own description of the service, limits included.

botocore itself refuses wrong types, missing members and values that are too small; `max`,
`pattern` and `enum` stand in the same description, but only the service enforces them. Here all of
it is enforced before anything is sent, and everything wrong is named at once.
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
# Java's character classes, as far as the service's patterns use them, in Python's words.
_JAVA_CLASSES = {r"\p{L}\p{Z}\p{N}": r"\w\s", r"\p{Alnum}": "a-zA-Z0-9"}


class Problem(NamedTuple):
    """What is wrong with the member of a request at a path, `ResourceConfig.InstanceType` say."""

    path: str
    value: Any
    """The value refused; None where there is none or where it is too long to show."""
    reason: str


@functools.cache
def input_shape(operation: str) -> Shape:
    """botocore's description of what a SageMaker operation takes."""
    description = botocore.loaders.Loader().load_service_model("sagemaker", "service-2")
    return ServiceModel(description).operation_model(operation).input_shape


def problems(request: dict[str, Any], operation: str) -> list[Problem]:
    """Everything the service's description forbids in the request."""
    return list(_walk(request, input_shape(operation), ""))


def _walk(value: Any, shape: Shape, path: str) -> Iterator[Problem]:
    expected: type[Any] = _TYPES[shape.type_name]
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is int):
        yield Problem(path, value, f"is no {shape.type_name}")
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
            yield Problem(inner, member, "is not a member that the service knows")


def _size_problem(value: Any, shape: Shape, path: str) -> Iterator[Problem]:
    limits = shape.metadata
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        if value < limits.get("min", value):
            yield Problem(path, value, f"is below the least allowed, {limits['min']}")
        if value > limits.get("max", value):
            yield Problem(path, value, f"is above the most allowed, {limits['max']}")
        return
    size, unit = len(value), _UNITS[type(value)]
    if size < limits.get("min", size):
        yield Problem(path, None, f"has {size} {unit}, at least {limits['min']} are required")
    if size > limits.get("max", size):
        yield Problem(path, None, f"has {size} {unit}, at most {limits['max']} are allowed")


def _text_problem(value: str, shape: Shape, path: str) -> Iterator[Problem]:
    allowed = shape.metadata.get("enum")
    pattern = shape.metadata.get("pattern")
    if allowed and value not in allowed:
        near = difflib.get_close_matches(value, allowed, n=3) or sorted(allowed)[:8]
        yield Problem(
            path,
            value,
            f"is none of the {len(allowed)} values that botocore {botocore.__version__} knows: "
            f"{', '.join(near)}{', ...' if len(near) < len(allowed) else ''}",
        )
    elif pattern and not _compiled(pattern).fullmatch(value):
        yield Problem(path, value, f"does not match {pattern}")


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    for java, python in _JAVA_CLASSES.items():
        pattern = pattern.replace(java, python)
    return re.compile(pattern)
