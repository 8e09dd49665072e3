"""Unites data sets packed in parts, on several hosts, into one."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from filelock import FileLock

from entry_point.data.errors import DataError
from entry_point.data.index import (
    INDEX,
    SCHEMA,
    Description,
    Shard,
    read_description,
    read_index,
    write_description,
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
    split: str, parts: list[Path], descriptions: list[Description], folder: Path
) -> list[Shard]:
    shards: list[Shard] = []
    tables: list[pa.Table] = []
    for part, description in zip(parts, descriptions, strict=True):
        if split not in description.splits:
            continue
        table = read_index(part, description, split)
        shifted = pc.add(table["shard"], pa.scalar(len(shards), pa.int32()))
        tables.append(table.set_column(table.schema.get_field_index("shard"), "shard", shifted))
        for shard in description.splits[split]:
            _link(part / split / shard.file, folder / shard.file)
            shards.append(shard)
    together = pa.concat_tables(tables)
    _require_distinct_keys(split, together)
    pq.write_table(together.cast(SCHEMA), folder / INDEX)
    return shards


def _require_distinct_keys(split: str, table: pa.Table) -> None:
    counts = table.group_by("key").aggregate([("key", "count")])
    repeated = counts.filter(pc.greater(counts["key_count"], 1))
    if len(repeated):
        raise DataError(
            f"{len(repeated)} keys of {split} are in more than one part, "
            f"the first is {repeated['key'][0]}: the parts must hold different files"
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
