"""The optimised data set's files: dataset.json, an index per split (Parquet), tar shards.

    dataset.json             classes, and for each split its shards and their sizes
    report.json              what packing did with every source file
    train/index.parquet      a row per sample, in the order of the shards
    train/shard-00-000000.tar

Any tool can read them: tar and WebDataset the shards, pandas, DuckDB or Arrow the index.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from entry_point.data.errors import DataError

DESCRIPTION = "dataset.json"
INDEX = "index.parquet"
VERSION = 1

SCHEMA = pa.schema(
    {
        "key": pa.string(),  # <class>/<name>, the members are <key>.jpg and <key>.cls
        "label": pa.int32(),  # place in dataset.json's classes
        "shard": pa.int32(),  # place in the split's list of shards
        "offset": pa.int64(),  # of the JPEG's first byte in the shard
        "length": pa.int64(),  # of the JPEG in bytes
        "height": pa.int32(),  # of the stored pixels, before orientation
        "width": pa.int32(),
        "orientation": pa.int8(),  # EXIF, 1 to 8
        "interval": pa.int32(),  # MCUs between restart markers, 0 for none
        "crc32": pa.uint32(),  # of the JPEG's bytes
        "digest": pa.binary(16),  # BLAKE2b of the source file's bytes
    }
)


@dataclass(frozen=True)
class Shard:
    file: str
    """Name in the split's folder."""
    bytes: int
    samples: int


@dataclass(frozen=True)
class Description:
    """What dataset.json says."""

    classes: list[str]
    splits: dict[str, list[Shard]]
    made_from: str
    """Fingerprint of the source's listing and the options."""
    format: str = "shards"
    version: int = field(default=VERSION)


def write_description(root: Path, description: Description) -> None:
    (root / DESCRIPTION).write_text(json.dumps(asdict(description), indent=1, ensure_ascii=False))


def read_description(root: Path) -> Description:
    """Raises DataError for anything that is no finished data set of this version."""
    file = root / DESCRIPTION
    try:
        content: dict[str, Any] = json.loads(file.read_text("utf-8"))
        if content["version"] != VERSION:
            raise DataError(f"{file} is of version {content['version']}, not {VERSION}: pack again")
        content["splits"] = {
            split: [Shard(**shard) for shard in shards]
            for split, shards in content["splits"].items()
        }
        return Description(**content)
    except FileNotFoundError as error:
        raise DataError(
            f"{root} is no optimised data set: it has no {DESCRIPTION}; `make dataset` makes one"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} is damaged ({error}): pack again") from error


def read_index(root: Path, description: Description, split: str) -> pa.Table:
    """The split's index, checked against the description. Raises DataError."""
    if split not in description.splits:
        raise DataError(f"{root} has no split {split}, only {', '.join(description.splits)}")
    file = root / split / INDEX
    try:
        table = pq.read_table(file, memory_map=True)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{file} is missing or damaged ({error}): copy it or pack again") from error
    if not table.schema.equals(SCHEMA):
        raise DataError(f"{file} has other columns than an index: pack again")
    expected = sum(shard.samples for shard in description.splits[split])
    if table.num_rows != expected:
        raise DataError(f"{file} has {table.num_rows} rows, {DESCRIPTION} says {expected}")
    return table
