"""Composes the commands that programs print from settings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from entry_point.config.data_config import FORMATS, OF_SAMPLES, DataConfig
from entry_point.config.override_text import spell

# Characters that a shell interprets within double quotes.
_SPECIAL = re.compile(r'["$`\\!]')


def make(target: str, settings: Mapping[str, Any], *words: str) -> str:
    """Returns the shell command that runs a target of make with these words and settings."""
    inside = typed(settings, *words)
    quoted = shlex.quote(inside) if _SPECIAL.search(inside) else f'"{inside}"'
    return f"make {target} ARGS={quoted}"


def typed(settings: Mapping[str, Any], *words: str) -> str:
    """Returns these words and settings as typed into `ARGS="..."`.

    Shells parse them twice, before and after make, and make expands `$`.
    """
    arguments = [*words, *(f"{key}={spell(value)}" for key, value in settings.items())]
    return shlex.join(arguments).replace("$", "$$")


def flat(values: Mapping[str, Any], group: str = "") -> dict[str, Any]:
    """Returns settings by their dotted keys."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{group}{name}"
        found |= flat(value, f"{key}.") if isinstance(value, dict) else {key: value}
    return found


def changes(
    values: Mapping[str, Any], defaults: Mapping[str, Any], group: str = ""
) -> dict[str, Any]:
    """Returns the settings that differ from the defaults, by their dotted keys."""
    known = flat(defaults, group)
    return {k: value for k, value in flat(values, group).items() if value != known.get(k, ...)}


def check_command(data: DataConfig) -> str:
    """Returns the command that lists all damaged images at once."""
    if data.format not in FORMATS:  # your own source, which no command knows
        return "the log names each"
    # A packed dataset contains its indexes.
    known = replace(data, index_root=None) if data.format == "shards" else data
    settings = described(known, "root", "images", "table", "index_root")
    return f"`{make('check-dataset', settings)}` lists them all"


def index_command(data: DataConfig) -> str:
    """Returns the command that makes the indexes in `index_root`, or those beside the images."""
    to = {} if data.index_root is None else {"output": data.index_root}
    known = replace(data, index_root=None)
    settings = described(known, "root", "images", "table", "val_fraction")
    source = {"source": settings.pop("root")}
    return make("dataset", {**source, **settings, **to, "output_format": "index"})


def convert_command(root: Path) -> str:
    """Returns the command that converts a packed dataset of version 1."""
    root = root if root.name.strip(".") else root.resolve()
    output = str(root.with_name(f"{root.name}-2"))
    return make("dataset", {"source": str(root), "output": output})


def described(data: DataConfig, *own: str) -> dict[str, Any]:
    """Returns the settings, other than defaults, that decide a dataset's images, pixels, labels and
    splits, under a program's keys: `own` ones, and others as `data.KEY`.

    FOLDER replaces a `root` that only the job knows.
    """
    of_dataset = {key: each for key, each in asdict(data).items() if key not in OF_SAMPLES}
    settings = {"root": "FOLDER", **changes(of_dataset, asdict(DataConfig()))}
    return {
        key if key.partition(".")[0] in own else f"data.{key}": each
        for key, each in settings.items()
    }
