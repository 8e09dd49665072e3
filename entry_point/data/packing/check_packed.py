"""What there is to check of a packed split: its files against the index, and its images."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from entry_point.data.batch import Damage
from entry_point.data.errors import DataError
from entry_point.data.sources.file_bytes import read_part
from entry_point.data.sources.folder import files_below
from entry_point.data.sources.index import INDEX, Description, Index, Shard, read_index
from entry_point.data.sources.shards import require_shard


@dataclass(frozen=True)
class Image:
    """One to be read and decoded; `read` raises OSError or DataError."""

    key: str
    read: Callable[[], Tensor]


def packed_images(
    root: Path, description: Description, split: str, damage: list[Damage]
) -> Iterator[Image]:
    """The images of a split; what is wrong with the files around them goes into `damage`."""
    folder = root / split
    try:
        index = read_index(root, description, split)
        wrong = (index["label"] < 0) | (index["label"] >= len(description.classes))
        for row in np.flatnonzero(wrong).tolist():
            damage.append(Damage(f"{folder}: {index.key(row)}", "label outside the class list"))
        if description.format == "folder":
            yield from _files(folder, index, damage)
            return
        shards = description.splits[split].shards
        _require_known(folder, {shard.file for shard in shards}, damage)
        for number, shard in enumerate(shards):
            rows = np.flatnonzero(index["shard"] == number)
            yield from _shard(folder, shard, index, rows, damage)
    except (OSError, DataError) as error:
        damage.append(Damage(str(folder), str(error)))


def _files(folder: Path, index: Index, damage: list[Damage]) -> Iterator[Image]:
    known = set()
    for row in range(len(index)):
        file = folder / f"{index.key(row)}.jpg"
        known.add(f"{index.key(row)}.jpg")
        yield Image(str(file), partial(_read_file, file, index, row))
    _require_known(folder, known, damage)


def _require_known(folder: Path, known: set[str], damage: list[Damage]) -> None:
    for file in files_below(folder):
        if file not in known and file != INDEX:
            damage.append(Damage(str(folder / file), "not in the index: remove it"))


def _shard(
    folder: Path, shard: Shard, index: Index, rows: NDArray[np.intp], damage: list[Damage]
) -> Iterator[Image]:
    file = folder / shard.file
    try:
        require_shard(folder, shard)
    except (OSError, DataError) as error:
        damage.append(Damage(str(file), f"{error} ({len(rows)} samples)"))
        return
    try:
        damage += _members(file, index, rows)
    except (OSError, tarfile.TarError) as error:
        damage.append(Damage(str(file), f"no readable tar file: {error}"))
    for row in rows.tolist():
        read = partial(_read, file, int(index["offset"][row]), index, row)
        yield Image(f"{file}: {index.key(row)}.jpg", read)


def _members(file: Path, index: Index, rows: NDArray[np.intp]) -> Iterator[Damage]:
    """Differences between the tar file's members and the index."""
    with tarfile.open(file) as tar:
        members = {member.name: member for member in tar}
        for row in rows.tolist():
            name = index.key(row)
            key = f"{file}: {name}.jpg"
            image, label = members.pop(f"{name}.jpg", None), members.pop(f"{name}.cls", None)
            if image is None or label is None:
                yield Damage(key, "not in the shard")
                continue
            text = tar.extractfile(label)
            if image.offset_data != index["offset"][row] or image.size != index["length"][row]:
                yield Damage(key, "not where the index says")
            if text is None or text.read() != str(int(index["label"][row])).encode():
                yield Damage(key, "its .cls is not the index's label")
    for name in members:
        yield Damage(f"{file}: {name}", "not in the index")


def _read_file(file: Path, index: Index, row: int) -> Tensor:
    size, length = file.stat().st_size, int(index["length"][row])
    if size != length:
        raise DataError(f"has {size} bytes instead of {length}: copy it again or pack again")
    return _read(file, 0, index, row)


def _read(file: Path, offset: int, index: Index, row: int) -> Tensor:
    jpeg = read_part(str(file), offset, int(index["length"][row]))
    if zlib.crc32(jpeg.numpy().data) != index["crc32"][row]:
        raise DataError("checksum differs: copy it again or pack the data set again")
    return jpeg
