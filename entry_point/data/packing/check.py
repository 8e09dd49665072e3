"""Reads a dataset end to end: every file, every checksum, every pixel."""

from __future__ import annotations

import logging
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from custom_op import decode_and_crop_jpeg, index_jpeg, jpeg_headers, jpeg_size
from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import TableConfig
from entry_point.data.batch import Damage
from entry_point.data.engines.ahead import map_ahead
from entry_point.data.errors import DataError
from entry_point.data.packing.report import find_duplicates
from entry_point.data.progress_bar import track
from entry_point.data.sources.class_folders import (
    FOLDER_INDEX,
    existing_splits,
    require_folder,
    visible_files,
)
from entry_point.data.sources.dataset_description import (
    SPLITS,
    Dataset,
    Shard,
    is_packed,
    read_dataset,
    require_shard,
)
from entry_point.data.sources.file_bytes import read_bytes
from entry_point.data.sources.folder import FolderSource
from entry_point.data.sources.folder_index import every_side_index, index_holder
from entry_point.data.sources.formats import is_table
from entry_point.data.sources.label_kind import member
from entry_point.data.sources.packed.index import PartIndex

if TYPE_CHECKING:
    from entry_point.data.sources.table import Table

_AHEAD_PER_WORKER = 4
_HEADER = ("height", "width", "orientation")
_WRONG_INDEX = (
    "its side index does not match the file, so it decodes slower, to the same pixels; `make "
    'dataset ARGS="source=FOLDER output_format=index"` makes the indexes again'
)


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Image:
    """An image to check; `read` raises OSError or DataError."""

    key: str
    read: Callable[[], Tensor]
    read_index: Callable[[], Tensor] | None = None
    """Of a folder index; empty for an image that has none there."""


def find_damage(
    root: Path,
    workers: int,
    images_of_table: Path | None = None,
    table: TableConfig | None = None,
    index_root: Path | None = None,
) -> tuple[int, list[Damage]]:
    """The number of images that were read, and all damage.

    Raises DataError without a dataset, and ConfigError for an argument that the dataset cannot use.
    """
    damage: list[Damage] = []
    images: Iterable[Image]
    settings = table or TableConfig()
    if is_table(root):
        from entry_point.data.sources.table import TableRequest, read_table

        request = TableRequest(root, images_of_table, settings, None, "table", splits=False)
        rows = read_table(request)
        total = len(rows.used)
        holder = index_holder(index_root, Path(rows.folder), "index_root")
        images = _with_indexes(_table_images(rows), _table_paths(rows), holder, damage)
    elif images_of_table is not None or settings != TableConfig():
        key = "table" if images_of_table is None else "images"
        raise ConfigError(key, must=f"needs a table as root, not {root}")
    elif is_packed(root):
        if index_root is not None:
            must = f"needs images that are not packed; {root} has its own side indexes"
            raise ConfigError("index_root", index_root, must)
        dataset = read_dataset(root)
        total = sum(dataset.samples(split) for split in dataset.splits)
        images = chain.from_iterable(
            _packed_images(root, dataset, split, damage) for split in dataset.splits
        )
    else:
        require_folder("root", root)
        sources = _open_splits(root, damage)
        total = sum(len(source) for source in sources)
        holder = index_holder(index_root, root, "index_root")
        images = _with_indexes(_folder_images(sources), _paths(sources, root), holder, damage)
    checked = 0
    with ThreadPoolExecutor(workers) as pool:
        results = map_ahead(pool, _check, images, workers * _AHEAD_PER_WORKER)
        for result in track(results, total, "checking"):
            checked += 1
            damage += [result] if result is not None else []
    return checked, damage


def _check(image: Image) -> Damage | None:
    try:
        jpeg = image.read()
        decode_and_crop_jpeg(jpeg, 0, 0, *jpeg_size(jpeg))
        index = None if image.read_index is None else image.read_index()
        if index is not None and len(index) and not torch.equal(index_jpeg(jpeg), index):
            return Damage(image.key, _WRONG_INDEX)
    except OSError as error:
        return Damage(image.key, f"cannot be read: {error.strerror}")
    except RuntimeError as error:  # DataError, JpegError, and torch's where memory is short
        return Damage(image.key, str(error))
    return None


def _open_splits(root: Path, damage: list[Damage]) -> list[FolderSource]:
    """The splits that can be opened. Raises DataError, which names every reason, if none can."""
    sources = []
    splits = existing_splits(root)
    # Without splits, a fraction of 0 leaves every image in `train`.
    for split in splits or SPLITS[:1]:
        try:
            sources.append(FolderSource(root, split, None if splits else 0.0))
        except DataError as error:
            damage.append(Damage(str(root / split), str(error)))
    if not sources:
        raise DataError("; ".join(damaged.reason for damaged in damage))
    return sources


def _folder_images(sources: list[FolderSource]) -> Iterator[Image]:
    for source in sources:
        for index in range(len(source)):
            yield Image(source.key(index), partial(source.read, index))


def _paths(sources: list[FolderSource], root: Path) -> Iterator[str]:
    for source in sources:
        for index in range(len(source)):
            yield source.file(index).removeprefix(f"{root}/")


def _table_images(table: Table) -> Iterator[Image]:
    for row in table.used.tolist():
        file = f"{table.folder}/{table.paths[row]}"
        yield Image(f"row {row + 1}: {file}", partial(read_bytes, file))


def _table_paths(table: Table) -> Iterator[str]:
    for row in table.used.tolist():
        yield table.paths[row]


def _with_indexes(
    images: Iterable[Image], paths: Iterable[str], holder: Path | None, damage: list[Damage]
) -> Iterable[Image]:
    """The images and their indexes in the folder index of `holder`, if there is one."""
    if holder is None:
        return images
    try:
        indexes = every_side_index(holder, list(paths))
    except (OSError, DataError) as error:
        damage.append(Damage(str(holder / FOLDER_INDEX), str(error)))
        return images
    return (
        replace(image, read_index=partial(indexes.one, row)) for row, image in enumerate(images)
    )


# Packed datasets


def _packed_images(
    root: Path, dataset: Dataset, split: str, damage: list[Damage]
) -> Iterator[Image]:
    """The images of a split; adds to `damage` how its files differ from its indexes."""
    folder, known = root / split, set[str]()
    indexes: list[PartIndex] = []
    for part in dataset.parts:
        if split not in part.splits or not part.splits[split].shards:
            continue
        known.add(part.part.index)
        try:
            index = PartIndex(root, part, split, mapped=True)
            indexes.append(index)
            _check_index(folder, index, damage)
            if dataset.format == "folder":
                yield from _plain_images(folder, index, known, damage)
                continue
            for number, shard in enumerate(part.splits[split].shards):
                known.add(shard.file)
                rows = np.flatnonzero(index["shard"] == number).tolist()
                yield from _shard_images(folder, shard, index, rows, damage)
        except (OSError, DataError) as error:
            damage.append(Damage(str(folder), str(error)))
            known.update(shard.file for shard in part.splits[split].shards)
    for file in sorted({*visible_files(folder)} - known):
        damage.append(Damage(str(folder / file), "not in the index: remove it"))
    if len(indexes) > 1:
        _compare_parts(folder, indexes, damage)


def _check_index(folder: Path, index: PartIndex, damage: list[Damage]) -> None:
    for row, reason in index.wrong_rows():
        damage.append(Damage(f"{folder}: {index.key(row)}", reason))
    if index.file.side_crc32() != index.split.side_crc32:
        reason = "its side indexes are damaged: training decodes without them; copy it again"
        damage.append(Damage(str(index.file.file), reason))


def _compare_parts(folder: Path, indexes: list[PartIndex], damage: list[Damage]) -> None:
    """What several parts of a split have in common, which no part's report can say."""
    seen: set[bytes] = set()
    repeated: set[bytes] = set()
    for index in indexes:
        keys = {*index.file.keys()}
        repeated |= keys & seen
        seen |= keys
    if repeated:
        example = min(repeated).decode("utf-8", "backslashreplace")
        reason = f"{len(repeated)} keys are in more than one part, for example {example}"
        damage.append(Damage(str(folder), f"{reason}: the same images may be packed twice"))
    found = find_duplicates([(folder.name, index.file) for index in indexes])
    if found["files"]:
        examples = ", ".join(found["examples"][0])
        log.info(
            "%s: %d files have the same bytes as another: %s", folder, found["files"], examples
        )


def _plain_images(
    folder: Path, index: PartIndex, known: set[str], damage: list[Damage]
) -> Iterator[Image]:
    """The plain files in the index; adds their names to `known`."""
    for row in range(len(index)):
        name = f"{index.key(row)}.jpg"
        known.add(name)
        if ".." in PurePosixPath(name).parts or name.startswith("/") or "\0" in name:
            damage.append(Damage(f"{folder}: {name}", "leads out of the dataset"))
        else:
            yield Image(str(folder / name), partial(_read_plain, folder / name, index, row))


def _shard_images(
    folder: Path, shard: Shard, index: PartIndex, rows: list[int], damage: list[Damage]
) -> Iterator[Image]:
    file = folder / shard.file
    try:
        require_shard(folder, shard)
    except (OSError, DataError) as error:
        damage.append(Damage(str(file), f"{error} ({len(rows)} samples)"))
        return
    try:
        damage += _compare_members(file, index, rows)
    except Exception as error:  # tarfile's parsers raise any type for a damaged file
        damage.append(Damage(str(file), f"not a readable tar file: {error}"))
    for row in rows:
        read = partial(_read, file, int(index["offset"][row]), index, row)
        yield Image(f"{file}: {index.key(row)}.jpg", read)


def _compare_members(file: Path, index: PartIndex, rows: list[int]) -> Iterator[Damage]:
    """Differences between the tar file's members and the index."""
    with tarfile.open(file, "r:") as tar:
        members = {each.name: each for each in tar if each.isreg()}
        for row in rows:
            name = index.key(row)
            key = f"{file}: {name}.jpg"
            content = member(index.part.kind, index.part.classes, index.label(row))
            image, label = members.pop(f"{name}.jpg", None), members.pop(f"{name}.json", None)
            if image is None or label is None:
                yield Damage(key, "not in the shard")
                continue
            if image.offset_data != index["offset"][row] or image.size != index["length"][row]:
                yield Damage(key, "its offset or length differs from the index")
            text = tar.extractfile(label)
            if text is None or text.read(len(content) + 1) != content:
                yield Damage(key, "its .json differs from the label in the index")
    for name in members:
        yield Damage(f"{file}: {name}", "not in the index")


def _read_plain(file: Path, index: PartIndex, row: int) -> Tensor:
    size, length = file.stat().st_size, int(index["length"][row])
    if size != length:
        raise DataError(f"has {size} bytes instead of {length}: copy it again or pack again")
    return _read(file, 0, index, row)


def _read(file: Path, offset: int, index: PartIndex, row: int) -> Tensor:
    jpeg = read_bytes(file, offset, int(index["length"][row]))
    if zlib.crc32(jpeg.numpy().data) != index["crc32"][row]:
        raise DataError("checksum differs: copy it again or pack the dataset again")
    if jpeg_headers([jpeg])[0].tolist() != [int(index[name][row]) for name in _HEADER]:
        raise DataError("its size or orientation differs from the index: pack the dataset again")
    return jpeg
