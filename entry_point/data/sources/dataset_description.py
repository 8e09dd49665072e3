"""The files of a packed dataset.

    dataset.json               the classes, the settings, and the shards of each split
    report.json                the result of packing for every source file
    train/index.safetensors    a row per image, in the order of the shards
    train/shard-000000.tar     the images, the label of each, and last the side indexes of all

A dataset that is packed in parts has these files for each part: `dataset-2-of-4.json`,
`report-2-of-4.json`, `train/index-2-of-4.safetensors`. No file is shared, so nothing is merged.
`tar` and the webdataset package read the shards, the safetensors package reads the index.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from entry_point.config.part import Part
from entry_point.data.errors import DataError
from entry_point.data.retries import with_retries
from entry_point.data.sources.file_bytes import read_bytes
from entry_point.job.text import escaped
from entry_point.job.whole_file import write_text

SPLITS = ("train", "val", "test")
Kind = Literal["class", "labels", "numbers"]
"""The labels of a sample: one class (its number), any number of labels (float32 (labels,), 0 or 1),
or a number for each target (float32 (targets,))."""
CLASS_NAME = "the name of a class must be UTF-8 without control characters"

_FILE_NAME = re.compile(r"dataset(-\d+-of-\d+)?\.json")


def is_class_name(name: str) -> bool:
    """Returns whether results and logs can show the name unchanged."""
    return escaped(name) == name


def _class_name(name: str) -> str:
    if not is_class_name(name):
        raise ValueError(CLASS_NAME)
    return name


# A dataset may be untrusted: no name in it may lead out of its folder.
SplitName = Annotated[str, Field(pattern="^(train|val|test)$")]
ShardName = Annotated[str, Field(pattern=r"^[\w.-]+\.tar$")]
ClassName = Annotated[str, AfterValidator(_class_name)]
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]


@dataclass(frozen=True)
class Shard:
    file: ShardName
    """Name of the file in the split's folder."""
    bytes: Count
    samples: Count
    crc32: int
    """CRC-32 of the file, for `make check-dataset`."""


@dataclass(frozen=True)
class Split:
    """The share of a split in a part."""

    shards: list[Shard]
    table_crc32: int
    """CRC-32 of the index file, checked before it is used."""

    @property
    def samples(self) -> int:
        return sum(shard.samples for shard in self.shards)


@dataclass(frozen=True)
class Description:
    """The description of a part of a dataset."""

    classes: list[ClassName]
    splits: dict[SplitName, Split]
    made_from: str
    """Hash of the list of source files, their sizes and labels: the same on every machine."""
    source_times: str
    """Hash of the files' modification times, which another copy of the files need not have."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings with which the images were packed, the same in all parts of a dataset."""
    kind: Kind = "class"
    part: Part = field(default_factory=Part)
    own_files: bool = False
    """Whether only the part's share of the source files was there, perhaps not with all classes."""
    version: Literal[1, 2] = 2
    """Version 1, with side indexes in the index file, can only be converted, by `make dataset`."""


@dataclass(frozen=True)
class Dataset:
    """The parts in a folder."""

    parts: list[Description]

    @property
    def version(self) -> int:
        return self.parts[0].version

    @property
    def kind(self) -> Kind:
        return self.parts[0].kind

    @cached_property
    def classes(self) -> list[str]:
        """The classes of all parts. Labels of a part are positions in its own list."""
        first = self.parts[0].classes
        if all(part.classes == first for part in self.parts):
            return first
        return sorted({name for part in self.parts for name in part.classes})

    @property
    def splits(self) -> list[str]:
        return [split for split in SPLITS if any(split in part.splits for part in self.parts)]

    def shards(self, split: str) -> list[Shard]:
        """Returns the shards in the order of their names, which is the order of the images."""
        found = (part.splits[split].shards for part in self.parts if split in part.splits)
        return sorted((shard for shards in found for shard in shards), key=lambda s: s.file)

    def samples(self, split: str) -> int:
        return sum(shard.samples for shard in self.shards(split))


def is_packed(root: Path) -> bool:
    """Returns whether `root` holds a packed dataset, or parts of one."""
    return bool(_files(root))


def is_description(name: str) -> bool:
    """Returns whether a file of this name describes a packed dataset, or a part of one."""
    return _FILE_NAME.fullmatch(name) is not None


def write_description(root: Path, part: Description) -> None:
    text = json.dumps(asdict(part), indent=1, ensure_ascii=False)
    write_text(root / part.part.description, text)


def read_dataset(root: Path) -> Dataset:
    """Read the descriptions. Raises DataError unless `root` holds all parts of a packed dataset."""
    parts = read_parts(root)
    if not parts:
        raise DataError(
            f"{root} is not a packed dataset, it has no dataset.json: pack one with `make dataset`"
        )
    require_alike(root, parts)
    count = parts[0].part.count
    missing = sorted({*range(1, count + 1)} - {part.part.number for part in parts})
    if missing:
        numbers = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        raise DataError(
            f"{root} has {len(parts)} of {count} parts, without {numbers}: copy them again or pack "
            f"them with part={missing[0]}/{count}"
        )
    return Dataset(sorted(parts, key=lambda part: part.part.number))


def read_parts(root: Path) -> list[Description]:
    """Returns the parts in `root`. Raises DataError for a damaged one."""
    parts = list[Description]()
    for file in _files(root):
        content = read_bytes(file).numpy().tobytes()
        try:
            part = TypeAdapter(Description).validate_json(content, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = escaped(".".join(map(str, first["loc"])))
            value = repr(first["input"])[:80]
            reason = f"{key}={value}: {first['msg']}" if key else first["msg"]
            raise DataError(f"{file} is damaged ({reason}): pack the dataset again") from error
        if part.part.description != file.name:
            reason = f"it describes {part.part}"
            raise DataError(f"{file} is damaged ({reason}): pack the dataset again")
        parts.append(part)
    return parts


def require_alike(root: Path, parts: Sequence[Description]) -> None:
    """Raise DataError unless these are parts of one dataset."""
    first, expected = parts[0], _in_common(parts[0])
    for part in parts[1:]:
        found = _in_common(part)
        for name in expected | found:
            if found.get(name) != expected.get(name):
                raise DataError(
                    f"{root}: {first.part} and {part.part} differ in {name}: remove one, and pack "
                    "it again like the others"
                )


def _in_common(part: Description) -> dict[str, Any]:
    """Returns the properties that must be equal in all parts of a dataset."""
    common: dict[str, Any] = {"the number of parts": part.part.count, "own_files": part.own_files}
    common |= {"version": part.version, "kind": part.kind} | part.settings
    if not part.own_files or part.kind != "class":  # otherwise parts differ in files and classes
        common |= {"classes": part.classes, "source files": part.made_from}
    return common


def _files(root: Path) -> list[Path]:
    names = with_retries(os.listdir, root) if root.is_dir() else ()
    return [root / name for name in sorted(names) if is_description(name)]


def require_shard(folder: Path, shard: Shard) -> None:
    """Raise DataError unless the shard's file in `folder` has the described size."""
    file = folder / shard.file
    try:
        size = with_retries(os.stat, file).st_size
    except FileNotFoundError as error:
        raise DataError(f"{file} is missing: copy it again or pack the dataset again") from error
    if size != shard.bytes:
        raise DataError(
            f"{file} has {size} bytes instead of {shard.bytes}: copy it again or pack the dataset "
            "again"
        )


def member(kind: str, classes: Sequence[str], label: Any) -> bytes:
    """Returns the JSON member with the label of a packed sample. It has names, because parts may
    number classes differently.

    `label` is the number of a class, the ascending numbers of labels, or a number for each target.
    """
    content: Any
    if kind == "class":
        content = classes[label]
    elif kind == "labels":
        content = [classes[number] for number in label]
    else:
        content = dict(zip(classes, (float(np.float32(value)) for value in label), strict=True))
    return json.dumps(content, ensure_ascii=False).encode()
