"""Reads a data set end to end: every checksum, every member's name and label, every pixel."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor

from custom_op import JpegError, decode_and_crop_jpeg, jpeg_size
from entry_point.data.ahead import map_ahead
from entry_point.data.batch import Damage
from entry_point.data.errors import DataError
from entry_point.data.folder import SPLITS, FolderSource
from entry_point.data.index import DESCRIPTION, read_description
from entry_point.data.mapping import map_file
from entry_point.data.progress import track
from entry_point.data.shards import ShardIndex, require_shard

_AHEAD_PER_WORKER = 4

Check = Callable[[], Damage | None]


def check_dataset(root: Path, workers: int) -> tuple[int, list[Damage]]:
    """How many images were checked, and all that is wrong. Raises DataError for no data set."""
    damage: list[Damage] = []
    checks: list[Iterator[Check]] = []
    total = 0
    if (root / DESCRIPTION).is_file() and read_description(root).format == "shards":
        for split in read_description(root).splits:
            index = ShardIndex(root, split)
            total += len(index)
            checks.append(_shard_checks(index, damage))
    else:
        for split in [split for split in SPLITS if (root / split).is_dir()] or SPLITS[:1]:
            source = FolderSource(root, split)
            total += len(source)
            checks.append(_folder_checks(source))
    with ThreadPoolExecutor(workers) as pool:
        jobs = (check for group in checks for check in group)
        results = map_ahead(pool, lambda check: check(), jobs, workers * _AHEAD_PER_WORKER)
        damage += [result for result in track(results, total, "checking") if result is not None]
    return total, damage


def _folder_checks(source: FolderSource) -> Iterator[Check]:
    for index in range(len(source)):
        yield partial(_file, source, index)


def _shard_checks(index: ShardIndex, damage: list[Damage]) -> Iterator[Check]:
    for number, shard in enumerate(index.shards):
        rows = np.flatnonzero(index.shard == number)
        try:
            require_shard(index.folder, shard)
        except DataError as error:
            damage.append(Damage(str(index.folder / shard.file), f"{error} ({len(rows)} samples)"))
            continue
        file = index.folder / shard.file
        damage += _members(file, index, rows)
        data = map_file(file)
        for row in rows:
            yield partial(_sample, index, int(row), data)


def _members(file: Path, index: ShardIndex, rows: Iterable[int]) -> list[Damage]:
    """Differences between the tar file's members and the index."""
    wrong = []
    try:
        with tarfile.open(file) as tar:
            members = {member.name: member for member in tar}
            for row in rows:
                name = index.name(int(row))
                image, label = members.get(f"{name}.jpg"), members.get(f"{name}.cls")
                if image is None or label is None:
                    wrong.append(Damage(index.key(int(row)), "not in the shard"))
                    continue
                text = tar.extractfile(label)
                if image.offset_data != index.offsets[row] or image.size != index.lengths[row]:
                    wrong.append(Damage(index.key(int(row)), "not where the index says"))
                if text is None or text.read() != str(int(index.labels[row])).encode():
                    wrong.append(Damage(index.key(int(row)), "its .cls is not the index's label"))
    except tarfile.TarError as error:
        wrong.append(Damage(str(file), f"no readable tar file: {error}"))
    return wrong


def _file(source: FolderSource, index: int) -> Damage | None:
    return _decode(source.key(index), source.read(index))


def _sample(index: ShardIndex, row: int, data: Tensor) -> Damage | None:
    start = int(index.offsets[row])
    jpeg = data[start : start + int(index.lengths[row])]
    if zlib.crc32(jpeg.numpy().data) != index.checksums[row]:
        return Damage(index.key(row), "checksum differs: copy the shard again")
    return _decode(index.key(row), jpeg)


def _decode(key: str, jpeg: Tensor) -> Damage | None:
    try:
        height, width = jpeg_size(jpeg)
        decode_and_crop_jpeg(jpeg, 0, 0, height, width)
    except JpegError as error:
        return Damage(key, str(error))
    return None
