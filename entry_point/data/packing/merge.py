"""Unites data sets packed in parts, on several hosts, into one."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
from filelock import FileLock

from entry_point.data.errors import DataError
from entry_point.data.index import (
    Description,
    Index,
    Rows,
    Shard,
    Split,
    read_description,
    read_index,
    write_description,
    write_index,
)

log = logging.getLogger(__name__)


def merge(parts: list[Path], output: Path) -> None:
    """Make `output` of the parts' shards (hard links where possible) and one index per split.

    Raises:
        DataError: parts with different classes, the same key or the same shard name twice.
    """
    descriptions = [read_description(part) for part in parts]
    _require_alike(parts, descriptions)
    fingerprint = sha256("".join(d.made_from for d in descriptions).encode()).hexdigest()
    output.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(output.parent / f".{output.name}.lock"):
        if output.exists():
            if read_description(output).made_from == fingerprint:
                log.info("%s is complete already", output)
                return
            raise DataError(f"output={output} exists and is not of these parts: remove it")
        unfinished = output.parent / f".{output.name}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        splits = {}
        for split in sorted({split for d in descriptions for split in d.splits}):
            (unfinished / split).mkdir(parents=True)
            splits[split] = _merge_split(split, parts, descriptions, unfinished / split)
        write_description(unfinished, Description(descriptions[0].classes, splits, fingerprint))
        for number, part in enumerate(parts):
            shutil.copyfile(part / "report.json", unfinished / f"report-{number}.json")
        os.sync()
        unfinished.rename(output)


def _require_alike(parts: list[Path], descriptions: list[Description]) -> None:
    for part, description in zip(parts, descriptions, strict=True):
        if description.format != "shards":
            raise DataError(f"{part} holds plain files, not shards: copy the folders together")
        if description.classes != descriptions[0].classes:
            difference = set(description.classes) ^ set(descriptions[0].classes)
            raise DataError(
                f"the classes of {parts[0]} and {part} differ ({', '.join(sorted(difference)[:5])})"
                ": pack the parts with classes=FILE"
            )


def _merge_split(
    name: str, parts: list[Path], descriptions: list[Description], folder: Path
) -> Split:
    shards: list[Shard] = []
    indexes: list[tuple[int, Index]] = []
    for part, description in zip(parts, descriptions, strict=True):
        if name not in description.splits:
            continue
        indexes.append((len(shards), read_index(part, description, name)))
        for shard in description.splits[name].shards:
            _link(part / name / shard.file, folder / shard.file)
            shards.append(shard)
    _require_distinct_keys(name, [index for _, index in indexes])
    return Split(shards, write_index(folder, _renumbered(indexes)))


def _renumbered(indexes: list[tuple[int, Index]]) -> Iterator[Rows]:
    """All rows, shards numbered on from the first of each part."""
    for first_shard, index in indexes:
        for rows in index.rows():
            yield rows | {"shard": np.asarray(rows["shard"]) + first_shard}


def _require_distinct_keys(split: str, indexes: list[Index]) -> None:
    counts = Counter(key for index in indexes for key in index.keys())
    repeated = sorted(key for key, count in counts.items() if count > 1)
    if repeated:
        raise DataError(
            f"{len(repeated)} keys of {split} are in more than one part, "
            f"the first is {repeated[0]}: the parts must hold different files"
        )


def _link(source: Path, target: Path) -> None:
    """A second name for the file; a copy on file systems that have no such thing."""
    if target.exists():
        raise DataError(f"{source.name} is in more than one part: give each its own part=N")
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        shutil.copyfile(source, target)
