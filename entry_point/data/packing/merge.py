"""Unites data sets packed in parts, on several hosts, into one."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Iterator
from hashlib import blake2b, sha256
from itertools import chain, pairwise
from pathlib import Path

import numpy as np

from entry_point.data.errors import DataError
from entry_point.data.packing.output import beside, is_complete, locked, publish
from entry_point.data.packing.packing_report import Report, find_duplicates
from entry_point.data.sources.index import (
    Description,
    Rows,
    Shard,
    Split,
    read_description,
    read_keys,
    read_rows,
    write_description,
    write_index,
)
from entry_point.data.sources.shards import require_shard

log = logging.getLogger(__name__)


def merge(parts: list[Path], output: Path) -> None:
    """Make `output` of the parts' shards (hard links where possible), indexes and reports.

    A shard is looked for in its part, and beside it, where a host of a Processing job leaves it.

    Raises:
        DataError: parts with different classes, the same key or the same shard name twice; a
            missing or incomplete shard, index or report.
    """
    descriptions = [read_description(part) for part in parts]
    _require_alike(parts, descriptions)
    fingerprint = sha256("".join(d.made_from for d in descriptions).encode()).hexdigest()
    with locked(output):
        unfinished = beside(output, "unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        if is_complete(output, fingerprint):
            return
        _unite(parts, descriptions, unfinished / "data", fingerprint)
        publish(unfinished / "data", output)


def _unite(parts: list[Path], descriptions: list[Description], data: Path, made_from: str) -> None:
    classes = descriptions[0].classes
    report = Report(classes)
    for part in parts:
        report.unite(part)
    splits = {}
    for split in sorted({split for d in descriptions for split in d.splits}):
        (data / split).mkdir(parents=True)
        splits[split] = _unite_split(split, parts, descriptions, data / split)
    report.duplicates = find_duplicates({split: data / split for split in splits})
    report.write(data)
    for line in report.lines():
        log.info("%s", line)
    report.require_readable("shards")
    write_description(data, Description(classes, splits, made_from))


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


def _unite_split(
    name: str, parts: list[Path], descriptions: list[Description], folder: Path
) -> Split:
    shards: list[Shard] = []
    rows: list[Iterator[Rows]] = []
    for part, description in zip(parts, descriptions, strict=True):
        if name not in description.splits:
            continue
        rows.append(_renumbered(read_rows(part, description, name), len(shards)))
        for shard in description.splits[name].shards:
            _link(_find(part, name, shard), folder / shard.file)
            shards.append(shard)
    checksum = write_index(folder, chain.from_iterable(rows))
    _require_distinct_keys(folder)
    return Split(shards, checksum)


def _renumbered(parts: Iterator[Rows], first_shard: int) -> Iterator[Rows]:
    for rows in parts:
        yield rows | {"shard": np.asarray(rows["shard"]) + first_shard}


def _require_distinct_keys(folder: Path) -> None:
    """Takes 10 bytes of memory per sample: hashes tell where to look, the keys decide."""
    hashes = np.fromiter((_hash(key) for key, _ in read_keys(folder, "label")), np.uint64)
    hashes.sort()
    suspects = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    if not suspects:
        return
    keys = sorted(key for key, _ in read_keys(folder, "label") if _hash(key) in suspects)
    repeated = [key for key, again in pairwise(keys) if key == again]
    if repeated:
        raise DataError(
            f"{len(repeated)} keys of {folder.name} are in more than one part, "
            f"the first is {repeated[0]}: the parts must hold different files"
        )


def _hash(key: str) -> int:
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "little")


def _find(part: Path, split: str, shard: Shard) -> Path:
    """The shard's file, which is there whole."""
    beside_the_part = part.parent / split
    folder = part / split if (part / split / shard.file).exists() else beside_the_part
    require_shard(folder, shard)
    return folder / shard.file


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
