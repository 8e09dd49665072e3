"""Merges the parts of a dataset, packed on several hosts, into one dataset."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from hashlib import sha256
from itertools import chain
from pathlib import Path

import numpy as np

from entry_point.contract.whole_file import link_or_copy
from entry_point.data.errors import DataError
from entry_point.data.packing.duplicates import find_duplicates, require_distinct_keys
from entry_point.data.packing.output_folder import beside, is_complete, locked, publish
from entry_point.data.packing.packing_report import Report
from entry_point.data.sources.dataset_description import (
    Description,
    Shard,
    Split,
    read_description,
    require_shard,
    write_description,
)
from entry_point.data.sources.packed.index import Rows, read_rows
from entry_point.data.sources.packed.index_writer import write_index


def merge(parts: list[Path], output: Path) -> None:
    """Make `output` from the parts' shards (hard links if possible), indexes and reports.

    A shard is in its part, or beside it, where a host of a Processing job puts it.

    Raises:
        DataError: the parts have different classes, or the same key or shard name twice; a shard,
            index or report is missing or incomplete.
    """
    descriptions = [read_description(part) for part in parts]
    _require_alike(parts, descriptions)
    fingerprint = sha256("".join(d.made_from for d in descriptions).encode()).hexdigest()
    with locked(output):
        unfinished = beside(output, "unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        if is_complete(output, fingerprint):
            return
        _merge(parts, descriptions, unfinished / "data", fingerprint)
        publish(unfinished / "data", output)


def _merge(parts: list[Path], descriptions: list[Description], data: Path, made_from: str) -> None:
    classes, kind = descriptions[0].classes, descriptions[0].kind
    report = Report(classes, kind)
    for part in parts:
        report.add_part(part)
    splits = {}
    for split in sorted({split for d in descriptions for split in d.splits}):
        (data / split).mkdir(parents=True)
        splits[split] = _merge_split(split, parts, descriptions, data / split)
    report.duplicates = find_duplicates({split: data / split for split in splits})
    report.finish(data, "shards")
    write_description(data, Description(classes, splits, made_from, kind=kind))


def _require_alike(parts: list[Path], descriptions: list[Description]) -> None:
    for part, description in zip(parts, descriptions, strict=True):
        if description.format != "shards":
            raise DataError(f"{part} holds plain files, not shards: copy the folders together")
        if description.kind != descriptions[0].kind:
            raise DataError(
                f"{parts[0]} has labels of kind {descriptions[0].kind}, {part} of kind "
                f"{description.kind}: merge only parts of one kind"
            )
        if description.classes != descriptions[0].classes:
            difference = set(description.classes) ^ set(descriptions[0].classes)
            raise DataError(
                f"the classes of {parts[0]} and {part} differ, only one has "
                f"{', '.join(sorted(difference)[:5])}: pack all parts with the same classes=FILE"
            )


def _merge_split(
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
    checksums = write_index(folder, chain.from_iterable(rows), descriptions[0].kind)
    require_distinct_keys(folder)
    return Split(shards, *checksums)


def _renumbered(chunks: Iterator[Rows], first_shard: int) -> Iterator[Rows]:
    for rows in chunks:
        yield rows | {"shard": np.asarray(rows["shard"]) + first_shard}


def _find(part: Path, split: str, shard: Shard) -> Path:
    """The shard's file, after a check of its size."""
    inside = (part / split / shard.file).exists()
    folder = part / split if inside else part.parent / split
    require_shard(folder, shard)
    return folder / shard.file


def _link(source: Path, target: Path) -> None:
    if target.exists():
        raise DataError(f"{source.name} is in more than one part: pack each part with its part=N")
    link_or_copy(source, target)
