"""The values that a tuning job tries, from overrides as `make sweep` takes them."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.types import IntervalSweep, Override

from entry_point.config.compose import parse_overrides
from entry_point.config.config_errors import ConfigError
from entry_point.contract.hyperparameters import decode

Ranges = dict[str, list[dict[str, Any]]]
"""`ParameterRanges` of the request: kind + `ParameterRanges` -> the ranges of this kind."""


_WHOLE = re.compile(r"interval\(\s*-?\d+\s*,\s*-?\d+\s*\)")


@dataclass(frozen=True)
class SweptOverrides:
    """A command line with swept values: what is fixed, what varies, and examples of each value."""

    fixed: list[str]
    ranges: Ranges
    examples: list[list[str]]
    """For each swept value, and each end of an interval, one trial's values with it."""

    @property
    def keys(self) -> list[str]:
        """What varies, as `optim.lr`."""
        return [each["Name"] for kind in self.ranges.values() for each in kind]


def split_sweep(arguments: Sequence[str]) -> SweptOverrides:
    """Separate swept from fixed overrides.

    `optim.lr=0.01,0.1`, `range(1,5)` and `choice(a,b)` list values. `interval(0.01,1)` spans all
    between, on a logarithmic scale with `tag(log,interval(0.001,1))`; `interval(1,9)`, with whole
    ends, whole numbers. Raises ConfigError for a
    value that a hyperparameter cannot carry, and without any swept value.
    """
    fixed: list[str] = []
    ranges: Ranges = {}
    axes: list[list[str]] = []
    for text, override in zip(arguments, parse_overrides(arguments), strict=True):
        if not override.is_sweep_override():
            fixed.append(text)
            continue
        key = override.get_key_element()
        kind, members, values = _swept(key, override, text)
        ranges.setdefault(f"{kind}ParameterRanges", []).append({"Name": key, **members})
        axes.append([f"{key}={value}" for value in values])
    if not axes:
        must = "vary a setting, as in optim.lr=0.01,0.1 or optim.lr=interval(0.01,1)"
        raise ConfigError("sweep", must=must)
    return SweptOverrides(fixed, ranges, list(_examples(axes)))


def combinations(ranges: Ranges) -> int:
    """The number of trials that try every combination of listed values."""
    count = 1
    for listed in ranges.get("CategoricalParameterRanges", []):
        count *= len(listed["Values"])
    return count


def _swept(key: str, override: Override, text: str) -> tuple[str, dict[str, Any], list[str]]:
    """Kind and members of one range, and its values as overrides spell them."""
    if not key or key[0] in "+~":
        raise ConfigError(text, must="must vary an existing key, without + or ~")
    value = override.value()
    if isinstance(value, IntervalSweep):
        kind, number = ("Integer", int) if _WHOLE.search(text) else ("Continuous", float)
        ends = [str(number(end)) for end in (value.start, value.end) if end is not None]
        scale = "Logarithmic" if "log" in value.tags else "Auto"
        return kind, {"MinValue": ends[0], "MaxValue": ends[1], "ScalingType": scale}, ends
    spelled = list(override.sweep_string_iterator())
    return "Categorical", {"Values": [_carried(key, each) for each in spelled]}, spelled


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


def _examples(axes: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """Each value once, beside the first values of the other axes."""
    first = [axis[0] for axis in axes]
    yield first
    for number, axis in enumerate(axes):
        for value in axis[1:]:
            yield [*first[:number], value, *first[number + 1 :]]
