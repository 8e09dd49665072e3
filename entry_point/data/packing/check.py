"""Reads a dataset end to end: every file, every checksum, every pixel."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from custom_op import decode_and_crop_jpeg, index_jpeg, jpeg_headers, jpeg_size
from entry_point.config.config_errors import ConfigError
from entry_point.config.packing_config import CheckConfig
from entry_point.data.batch import Damage
from entry_point.data.decode.decode import is_jpeg, upright_sizes
from entry_point.data.decode.pillow import read_photo
from entry_point.data.errors import DataError
from entry_point.data.packing.statistics import Look, Statistics, class_lines, look
from entry_point.data.plan.crops import Geometry
from entry_point.data.plan.samples import Ints
from entry_point.data.progress_bar import in_threads
from entry_point.data.sources.dataset import open_dataset
from entry_point.data.sources.dataset_description import (
    Dataset,
    Shard,
    read_dataset,
    require_shard,
)
from entry_point.data.sources.file_bytes import crc32, read_bytes
from entry_point.data.sources.folder import visible_files
from entry_point.data.sources.index_file import IndexFile
from entry_point.data.sources.shards import PartIndex
from entry_point.data.sources.source import Encoded, Source, read_image, read_labels
from entry_point.data.sources.splits import WHOLE
from entry_point.job.program import ReadError, counted

_HEADER = ("height", "width", "orientation")
_WRONG_CHECKSUM = "checksum differs: copy it again or pack the dataset again"
_WRONG_SIDE_INDEXES = "its side indexes are damaged: training decodes without them; copy it again"
_WRONG_INDEX = (
    "its side index does not match the file, so it decodes slower, to the same pixels; `make "
    'dataset ARGS="source=FOLDER output_format=index"` makes the indexes again'
)


@dataclass(frozen=True)
class Image:
    """An image to check; its functions raise OSError or DataError."""

    key: str
    read: Callable[[], Tensor]
    check: Callable[[Tensor], object] | None = None
    """Gets the encoded image, which can be decoded."""


class Unread(Damage):
    """What could not be read although it may be whole, see ReadError."""


@dataclass(frozen=True)
class Checked:
    """What reading a dataset has found."""

    images: int
    damage: list[Damage]
    statistics: list[str]
    """Lines about the images that can be decoded."""


def check_dataset(config: CheckConfig) -> Checked:
    """Read every image.

    Raises DataError without a dataset, ReadError if its disk fails at once, and ConfigError for an
    argument that the dataset cannot use.
    """
    damage: list[Damage] = []
    dataset = open_dataset(config.dataset(), Path(config.root), for_training=False)
    images: Iterable[Image]
    if dataset.data.format == "shards":
        if config.index_root is not None:
            message = f"needs images that are not packed; {dataset.root} has its own side indexes"
            raise ConfigError("index_root", config.index_root, message)
        packed = read_dataset(dataset.root)
        total = sum(map(packed.samples, dataset.splits))
        parts = (_packed_images(dataset.root, packed, split, damage) for split in dataset.splits)
        images = chain.from_iterable(parts)
    else:
        source = dataset.source(WHOLE)
        total, images = len(source), _images(source, damage)
    checked, statistics = 0, Statistics()
    for found in in_threads(_check, images, total, "checking"):
        checked += 1
        if isinstance(found, Damage):
            damage.append(found)
        else:
            statistics.add(found)
    lines = [*class_lines(dataset), *statistics.lines()]
    return Checked(checked, damage, lines)


def _check(image: Image) -> Damage | Look:
    try:
        file = image.read()
        if jpeg := is_jpeg(file):
            pixels = decode_and_crop_jpeg(file, 0, 0, *jpeg_size(file)).permute(1, 2, 0).numpy()
        else:
            pixels = np.asarray(read_photo(file))
        if image.check is not None:
            image.check(file)
        return look(pixels, jpeg)
    except OSError as error:
        return Damage(image.key, f"cannot be read: {error.strerror}")
    # Also DataError, JpegError, UnusableImageError, torch's own, and what your own source raises.
    except (ReadError, RuntimeError, ValueError) as error:
        return _found(image.key, error)


def _found(key: str, error: Exception, more: str = "") -> Damage:
    return (Unread if isinstance(error, ReadError) else Damage)(key, f"{error}{more}")


def _images(source: Source, damage: list[Damage]) -> Iterator[Image]:
    """Yields the images of a source; adds to `damage` a side index that cannot be read."""
    if source.index_file is not None:
        try:
            IndexFile(source.index_file, {})
        except (OSError, DataError, ReadError) as error:
            damage.append(_found(str(source.index_file), error))
    for i in range(len(source)):
        key, read = source.place(i) + source.key(i), partial(read_image, source, i)
        yield Image(key, read, partial(_check_beside, source, np.array([i])))


def _check_beside(source: Source, image: Ints, file: Tensor) -> None:
    """Check what belongs to an image: its targets, and its side index."""
    if source.kind == "targets":
        heights, widths = upright_sizes(Encoded([file]))
        whole = np.array([[0, 0, heights[0], widths[0]]])
        unflipped, side = np.zeros(1, bool), int(heights[0])
        geometry = Geometry(side, whole, unflipped, heights, widths, training=False)
        read_labels(source, image, geometry)
    if source.index_file is not None:
        index = (source.indexes(image) or [torch.empty(0)])[0]
        if len(index) and not (is_jpeg(file) and torch.equal(index_jpeg(file), index)):
            raise DataError(_WRONG_INDEX)


# Packed datasets


def _packed_images(
    root: Path, dataset: Dataset, split: str, damage: list[Damage]
) -> Iterator[Image]:
    """Yields the images of a split; adds to `damage` how its files differ from its indexes."""
    folder, known = root / split, set[str]()
    for part in dataset.parts:
        if split not in part.splits or not part.splits[split].shards:
            continue
        known |= {part.part.index, *(shard.file for shard in part.splits[split].shards)}
        try:
            index = PartIndex(root, part, split)
            for row, reason in index.wrong_rows():
                damage.append(Damage(f"{folder}: {index.name(row)}", reason))
            if index.file.side_crc32() != index.split.side_crc32:
                damage.append(Damage(str(index.file.file), _WRONG_SIDE_INDEXES))
        except (OSError, DataError, ReadError) as error:
            damage.append(_found(str(folder), error))
            continue
        for number, shard in enumerate(part.splits[split].shards):
            rows = np.flatnonzero(index["shard"] == number).tolist()
            yield from _shard_images(folder, shard, index, rows, damage)
    for file in sorted({*visible_files(folder)} - known):
        damage.append(Damage(str(folder / file), "not in the index: remove it"))


def _shard_images(
    folder: Path, shard: Shard, index: PartIndex, rows: list[int], damage: list[Damage]
) -> Iterator[Image]:
    file = folder / shard.file
    try:
        require_shard(folder, shard)
    except (OSError, DataError, ReadError) as error:
        damage.append(_found(str(file), error, f" ({counted(len(rows), 'sample')})"))
        return
    try:  # names and labels have no checksum of their own
        if crc32(file, 0, shard.bytes) != shard.crc32:
            damage.append(Damage(str(file), _WRONG_CHECKSUM))
    except (OSError, DataError, ReadError) as error:
        damage.append(_found(str(file), error))
    for row in rows:
        yield Image(f"{file}: {index.name(row)}", partial(_read, file, index, row))


def _read(file: Path, index: PartIndex, row: int) -> Tensor:
    """Returns the image of a row. Raises OSError, and DataError if the shard holds another
    there."""
    image = read_bytes(file, int(index["offset"][row]), int(index["length"][row]))
    if zlib.crc32(image.numpy().data) != index["crc32"][row]:
        raise DataError(_WRONG_CHECKSUM)
    stated = [int(index[name][row]) for name in _HEADER]
    if is_jpeg(image) and jpeg_headers([image])[0].tolist() != stated:
        raise DataError("its size or orientation differs from the index: pack the dataset again")
    return image
