"""The packed dataset's files, and the one that describes them: dataset.json.

    dataset.json             the classes, and the shards of each split with their sizes
    report.json              what packing did with every source file
    train/index.parquet      one row per sample, in the order of the shards
    train/index.jix          the side indexes of these samples, in the same order
    train/shard-00-000000.tar

Common tools read them: tar and WebDataset the shards; pandas, DuckDB and Arrow the index.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from entry_point.contract.printable import escaped
from entry_point.contract.whole_file import write_text
from entry_point.data.errors import DataError
from entry_point.data.sources.file_bytes import read_bytes
from entry_point.data.sources.label_kind import KINDS, Kind

DESCRIPTION = "dataset.json"
SPLITS = ("train", "val")
VERSION = 1
"""1 had classes alone, 2 labels of any kind, and 3 has side indexes."""
CLASS_NAME = "the name of a class must be UTF-8 without control characters"

_SHARD_NAME = re.compile(r"[\w.-]+\.tar")
_MOST_BYTES = 2**63 - 1


# The checks raise ValueError or TypeError. A dataset may come from anywhere: no name in it may lead
# out of its folder.


@dataclass(frozen=True)
class Shard:
    file: str
    """Name in the split's folder."""
    bytes: int
    samples: int

    def __post_init__(self) -> None:
        if not _SHARD_NAME.fullmatch(self.file):
            raise ValueError(f"shard {self.file!r}: must be a file name that ends in .tar")
        for count in (self.bytes, self.samples):
            if not isinstance(count, int) or not 0 <= count <= _MOST_BYTES:
                raise ValueError(f"{count!r} bytes or samples: must be a number from 0")


@dataclass(frozen=True)
class Split:
    shards: list[Shard]
    index_crc32: int
    """CRC-32 of the index file, checked before the file is parsed."""
    side_indexes_crc32: int = 0
    """CRC-32 of the file of side indexes, 0 if there is none."""

    @property
    def samples(self) -> int:
        return sum(shard.samples for shard in self.shards)


FORMATS = ("shards", "folder")


@dataclass(frozen=True)
class Description:
    """The content of dataset.json."""

    classes: list[str]
    splits: dict[str, Split]
    made_from: str
    """Fingerprint of the source's file listing and the options."""
    format: str = "shards"
    kind: Kind = "class"

    def __post_init__(self) -> None:
        for split in self.splits:
            if split not in SPLITS:
                raise ValueError(f"split {split!r}: must be {' or '.join(SPLITS)}")
        if not isinstance(self.classes, list):
            raise TypeError(f"classes {self.classes!r}: must be a list")
        for text in (*self.classes, self.made_from, self.format):
            if not isinstance(text, str):
                raise TypeError(f"{text!r}: must be a string")
        if self.format not in FORMATS:
            raise ValueError(f"format {self.format!r}: must be {' or '.join(FORMATS)}")
        if self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r}: must be one of {', '.join(KINDS)}")
        for name in self.classes:
            if not is_class_name(name):
                raise ValueError(f"class {name!r}: {CLASS_NAME}")


def is_class_name(name: str) -> bool:
    """Whether results and logs can hold the name as it is."""
    return escaped(name) == name


def write_description(root: Path, description: Description) -> None:
    content = asdict(description) | {"version": VERSION}
    text = json.dumps(content, indent=1, ensure_ascii=False)
    write_text(root / DESCRIPTION, text)


def read_description(root: Path) -> Description:
    """Raises DataError unless `root` holds a complete packed dataset of this version."""
    file = root / DESCRIPTION
    try:
        content: dict[str, Any] = json.loads(read_bytes(file).numpy().tobytes())
        version = content.pop("version")
        if version != VERSION:
            raise DataError(
                f"{file} has version {version}, this code reads version {VERSION}: pack the "
                "dataset again"
            )
        content["splits"] = {
            name: Split(**split | {"shards": [Shard(**shard) for shard in split["shards"]]})
            for name, split in content["splits"].items()
        }
        return Description(**content)
    except FileNotFoundError as error:
        raise DataError(
            f"{root} is not a packed dataset, it has no {DESCRIPTION}: pack one with `make dataset`"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{file} is damaged ({error}): pack the dataset again") from error


def require_shard(folder: Path, shard: Shard) -> None:
    """Raise DataError unless the shard's file in `folder` has the described size."""
    file = folder / shard.file
    if not file.is_file():
        raise DataError(f"{file} is missing: copy it again or pack the dataset again")
    if file.stat().st_size != shard.bytes:
        raise DataError(
            f"{file} has {file.stat().st_size} bytes instead of {shard.bytes}: "
            "copy it again or pack the dataset again"
        )
