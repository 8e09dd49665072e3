"""Hydra overrides as SageMaker hyperparameters, and back.

An override travels as itself, `optim.lr` with the value `0.05`, so that the console shows it and
searches by it, and a tuning job can vary it. What would not come back unchanged that way (quoted
text, `+key=`, `~key`) travels as a JSON list of strings in ASCII, split into chunks under reserved
keys, because every SDK and toolkit quotes differently. SageMaker takes at most 100 hyperparameters
with keys of at most 256 and values of at most 2,500 characters.

The driver of SDK v3's `SourceCode` exports each hyperparameter as a shell variable, whose name
cannot have a dot: for it, write `optim__lr`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from entry_point.job.run_folder import ContractError, read_json

FILE = "hyperparameters.json"

VALUE_CHARACTERS = 2500
CHUNK_KEY = "hydra_overrides_{:03d}"
# Leaves room for the chunks, for what a tuning job adds, and for what SDKs add.
_MOST_PLAIN = 60

_CHUNK = re.compile(r"hydra_overrides_(\d+)")
_PLAIN_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_.]{0,255}")
# The SDKs, the containers' toolkit and tuning jobs add keys under these prefixes.
_FOREIGN_PREFIXES = ("sagemaker_", "_tuning_")
# What Hydra's grammar reads as one unquoted value.
_BARE_VALUE = re.compile(r"[A-Za-z0-9_+\-./%@:]+")
_BARE_TEXT = re.compile(r"[A-Za-z_][A-Za-z0-9_\-./]*")
TYPED_WORDS = {"true", "false", "null", "none", "nan", "inf"}


def read_overrides(folder: Path) -> list[str]:
    """Hydra overrides from hyperparameters.json. Raises ContractError."""
    return as_overrides(read_json(folder / FILE), str(folder / FILE))


def as_overrides(hyperparameters: Mapping[str, object], source: str) -> list[str]:
    """Returns the Hydra overrides that a job takes from its hyperparameters, which `source` holds.

    Raises ContractError for what a job refuses.
    """
    content = {key: str(value) for key, value in hyperparameters.items()}
    # SDK v2 sends a script with `entry_point=`, which this image would ignore. In AWS's own image,
    # SageMaker's toolkit runs the script, which may start this program.
    script = content.get("sagemaker_program", "").strip('"')  # the SDK writes JSON
    if script and "SM_USER_ENTRY_POINT" not in os.environ:
        raise ContractError(
            f"hyperparameter sagemaker_program={script}: this image runs its own program, not an "
            "entry_point; drop entry_point and send the code in project/ with "
            "job.code=true, or run your script with SDK v3's ModelTrainer(source_code=...)"
        )
    try:
        return decode(content)
    except ValueError as error:
        raise ContractError(f"{source}: {error}") from error


def encode(overrides: Sequence[str]) -> dict[str, str]:
    """Hyperparameters that mean the same as the overrides; empty for no overrides."""
    plain: dict[str, str] = {}
    listed: list[str] = []
    after: list[tuple[str, bool]] = []  # (key, whether it travels as itself) of all later overrides
    for override in reversed(overrides):
        key, _, value = override.partition("=")
        name = key.lstrip("+~")
        # `decode` puts the listed ones first, then the plain keys in alphabetical order.
        in_order = all(
            is_plain and name < other for other, is_plain in after if _touch(name, other)
        )
        is_plain = in_order and len(plain) < _MOST_PLAIN
        is_plain &= bool(_PLAIN_KEY.fullmatch(key)) and len(value) <= VALUE_CHARACTERS
        # `decode` must make the same override of it.
        is_plain = is_plain and decode({key: value}) == [override]
        if is_plain:
            plain[key] = value
        else:
            listed.append(override)
        after.append((name, is_plain))
    text = json.dumps(listed[::-1], separators=(",", ":")) if listed else ""
    chunks = {
        CHUNK_KEY.format(number): text[start : start + VALUE_CHARACTERS]
        for number, start in enumerate(range(0, len(text), VALUE_CHARACTERS))
    }
    return {**chunks, **dict(reversed(plain.items()))}


def _touch(one: str, other: str) -> bool:
    """Returns whether two keys set the same value, or one sets a part of the other."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def decode(hyperparameters: Mapping[str, str]) -> list[str]:
    """Hydra overrides from a job's hyperparameters: first the listed ones, then the plain keys.

    In Hydra the last override wins, so a tuning job's values win over listed ones.
    Raises ValueError if the chunks are not a JSON list of strings.
    """
    chunks: dict[int, str] = {}
    plain: dict[str, str] = {}
    for key, value in hyperparameters.items():
        if match := _CHUNK.fullmatch(key):
            chunks[int(match[1])] = value
        elif not key.startswith(_FOREIGN_PREFIXES):
            plain[key if "." in key else key.replace("__", ".")] = value
    return _join(chunks) + [f"{key}={_plain_value(plain[key])}" for key in sorted(plain)]


def _join(chunks: Mapping[int, str]) -> list[str]:
    if not chunks:
        return []
    numbers = sorted(chunks)
    text = "".join(chunks[number] for number in numbers)
    overrides = None
    if numbers == list(range(len(numbers))):
        with suppress(ValueError):
            overrides = json.loads(text)
    if not isinstance(overrides, list) or not all(isinstance(item, str) for item in overrides):
        raise ValueError(
            f"hyperparameters {CHUNK_KEY.format(0)}...: must be a JSON list of strings in chunks "
            f"numbered from 0, not {text[:80]!r} in {numbers}; send all chunks as they are"
        )
    return overrides


def _plain_value(value: str) -> str:
    """Returns the value of a plain key in Hydra's grammar.

    Numbers and words stay as they are; so do true, false and null, as Python or JSON spells them.
    JSON lists and strings are converted. Anything else is literal text.
    """
    if value == "None":
        return "null"
    if _BARE_VALUE.fullmatch(value):
        return value
    try:
        parsed = json.loads(value, parse_int=_Number, parse_float=_Number)
    except ValueError:
        return _quote(value)
    return _quote(value) if isinstance(parsed, dict) else spell(parsed)


class _Number(str):
    """As it was typed: the setting may be text."""


def spell(value: object) -> str:
    """Returns a value in Hydra's grammar."""
    if isinstance(value, list):
        return "[" + ",".join(spell(item) for item in value) + "]"
    if isinstance(value, _Number):
        return value
    if isinstance(value, str):
        bare = _BARE_TEXT.fullmatch(value) and value.lower() not in TYPED_WORDS
        return value if bare else _quote(value)
    return json.dumps(value)


def _quote(text: str) -> str:
    """Returns a quoted string in Hydra's grammar, with quotes and the backslashes before them
    escaped.

    `${` is escaped too: OmegaConf would read an interpolation.
    """
    text = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    text = re.sub(r"(\\*)'", r"\1\1\\'", text)
    text = re.sub(r"(\\+)\Z", r"\1\1", text)
    return f"'{text}'"
