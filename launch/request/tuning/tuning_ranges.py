"""The values that a tuning job tries, from overrides as `make sweep` takes them."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from hydra.core.override_parser.types import IntervalSweep, Override

from entry_point.config.compose import parse_overrides
from entry_point.config.config_errors import ConfigError
from entry_point.contract.hyperparameters import decode

Ranges = dict[str, list[dict[str, Any]]]
"""`ParameterRanges` of the request: kind + `ParameterRanges` -> the ranges of this kind."""


_WHOLE = re.compile(r"interval\(\s*-?\d+\s*,\s*-?\d+\s*\)")


def split_sweep(arguments: Sequence[str]) -> tuple[list[str], Ranges]:
    """Return the fixed overrides and the ranges of the swept ones.

    `optim.lr=0.01,0.1`, `range(1,5)` and `choice(a,b)` list values. `interval(0.01,1)` spans all
    between, on a logarithmic scale with `tag(log,interval(0.001,1))`; `interval(1,9)`, with whole
    ends, whole numbers. Raises ConfigError for a value that a hyperparameter cannot carry, and
    without any swept value.
    """
    fixed: list[str] = []
    ranges: Ranges = {}
    for text, override in zip(arguments, parse_overrides(arguments), strict=True):
        if override.is_sweep_override():
            kind, members = _swept(override, text)
            ranges.setdefault(f"{kind}ParameterRanges", []).append(members)
        else:
            fixed.append(text)
    if not ranges:
        must = "vary a setting, as in optim.lr=0.01,0.1 or optim.lr=interval(0.01,1)"
        raise ConfigError("sweep", must=must)
    return fixed, ranges


def swept_keys(ranges: Ranges) -> list[str]:
    """What varies, as `optim.lr`."""
    return [each["Name"] for kind in ranges.values() for each in kind]


def examples(ranges: Ranges) -> Iterator[list[str]]:
    """The overrides of trials that together have every listed value and both ends of intervals."""
    values = {
        each["Name"]: each.get("Values") or [each["MinValue"], each["MaxValue"]]
        for kind in ranges.values()
        for each in kind
    }
    first = {key: each[0] for key, each in values.items()}
    yield decode(first)
    for key, each in values.items():
        yield from (decode({**first, key: value}) for value in each[1:])


def combinations(ranges: Ranges) -> int:
    """The number of trials that try every combination of listed values."""
    count = 1
    for listed in ranges.get("CategoricalParameterRanges", []):
        count *= len(listed["Values"])
    return count


def _swept(override: Override, text: str) -> tuple[str, dict[str, Any]]:
    """Kind and members of one range."""
    key = override.get_key_element()
    if not key or key[0] in "+~":
        raise ConfigError(text, must="must vary an existing key, without + or ~")
    value = override.value()
    if isinstance(value, IntervalSweep):
        kind, number = ("Integer", int) if _WHOLE.search(text) else ("Continuous", float)
        ends = [str(number(end)) for end in (value.start, value.end) if end is not None]
        scale = "Logarithmic" if "log" in value.tags else "Auto"
        between = {"MinValue": ends[0], "MaxValue": ends[1], "ScalingType": scale}
        return kind, {"Name": key, **between}
    values = [_carried(key, spelled) for spelled in override.sweep_string_iterator()]
    return "Categorical", {"Name": key, "Values": values}


def _carried(key: str, spelled: str) -> str:
    """The text of a hyperparameter that the job decodes to this value."""
    (meant,) = parse_overrides([f"{key}={spelled}"])
    value = meant.value()
    text = spelled
    if isinstance(value, str):
        text = str(value)
    elif isinstance(value, list):
        text = json.dumps(value, default=str)
    (arrives,) = parse_overrides(decode({key: text}))
    if arrives.value() != value:
        must = "cannot be sent as a hyperparameter; vary a number or a word"
        raise ConfigError(f"{key}={spelled}", must=must)
    return text
