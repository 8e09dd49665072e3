"""Reads a dataset end to end: every file, every checksum, every pixel."""

from __future__ import annotations

import logging
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
from entry_point.config.data_config import DataConfig
from entry_point.config.packing_config import CheckConfig
from entry_point.data.batch import Damage
from entry_point.data.decode.any_format import AnyFormat, is_jpeg
from entry_point.data.decode.metadata import UnusableImageError
from entry_point.data.decode.operator import OperatorDecoder
from entry_point.data.decode.pillow import read_photo
from entry_point.data.errors import DataError, ReadError
from entry_point.data.progress_bar import in_threads
from entry_point.data.sources.dataset import open_dataset, with_format
from entry_point.data.sources.dataset_description import (
    Dataset,
    Shard,
    read_dataset,
    require_shard,
)
from entry_point.data.sources.file_bytes import crc32, read_bytes
from entry_point.data.sources.folder import visible_files
from entry_point.data.sources.index_file import FOLDER_INDEX, index_holder, look_up
from entry_point.data.sources.masks import MaskSource
from entry_point.data.sources.shards import PartIndex
from entry_point.data.sources.source import Encoded, FileSource, Source, read_image
from entry_point.data.sources.splits import WHOLE

_HEADER = ("height", "width", "orientation")
_WRONG_CHECKSUM = "checksum differs: copy it again or pack the dataset again"
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
    check_mask: Callable[[Tensor], object] | None = None
    """Gets the encoded image. Raises DataError."""


class Unread(Damage):
    """What could not be read although it may be whole, see ReadError."""


def find_damage(config: CheckConfig) -> tuple[int, list[Damage]]:
    """The number of images that were checked, and all damage.

    Raises DataError without a dataset, ReadError if its disk fails at once, and ConfigError for an
    argument that the dataset cannot use.
    """
    damage: list[Damage] = []
    total, images = _images(config, damage)
    checked = 0
    for found in in_threads(_check, images, total, "checking"):
        checked += 1
        damage += [found] if found is not None else []
    return checked, damage


def _check(image: Image) -> Damage | None:
    try:
        jpeg = image.read()
        if not is_jpeg(jpeg):
            read_photo(jpeg)
        else:
            decode_and_crop_jpeg(jpeg, 0, 0, *jpeg_size(jpeg))
        if image.check_mask is not None:
            image.check_mask(jpeg)
        index = None if image.read_index is None else image.read_index()
        if index is not None and len(index) and not torch.equal(index_jpeg(jpeg), index):
            return Damage(image.key, _WRONG_INDEX)
    except OSError as error:
        return Damage(image.key, f"cannot be read: {error.strerror}")
    # Also DataError, JpegError and torch's own
    except (ReadError, RuntimeError, UnusableImageError) as error:
        return _found(image.key, error)
    return None


def _found(key: str, error: Exception, more: str = "") -> Damage:
    return (Unread if isinstance(error, ReadError) else Damage)(key, f"{error}{more}")


def _images(config: CheckConfig, damage: list[Damage]) -> tuple[int, Iterable[Image]]:
    """The images of a dataset, and how many there are; adds to `damage` what is not an image's."""
    root, data = Path(config.root), config.dataset()
    data, _ = with_format(data, root)
    if data.format == "shards":
        if config.index_root is not None:
            must = f"needs images that are not packed; {root} has its own side indexes"
            raise ConfigError("index_root", config.index_root, must)
        packed = read_dataset(root)
        images_of = (_packed_images(root, packed, split, damage) for split in packed.splits)
        return sum(map(packed.samples, packed.splits)), chain.from_iterable(images_of)
    dataset = open_dataset(data, root, for_training=False)
    images = dataset.source(WHOLE)
    return len(images), _plain_images(images, data, root, damage)


def _plain_images(
    images: Source, data: DataConfig, root: Path, damage: list[Damage]
) -> Iterator[Image]:
    """The images of a source, with what else is to be checked of each."""
    read_index: Callable[[int], Tensor] | None = None
    if isinstance(images, FileSource) and data.format != "webdataset":
        index_root = Path(data.index_root) if data.index_root else None
        folder = root if root.is_dir() and data.format != "manifest" else Path(images.folder)
        holder = index_holder(index_root, folder, data.index_command(), "index_root")
        if holder is not None:
            paths = [images.file(i).removeprefix(f"{folder}/") for i in range(len(images))]
            try:
                read_index = look_up(holder, paths)[0].one
            except (OSError, DataError, ReadError) as error:
                damage.append(_found(str(holder / FOLDER_INDEX), error))
    for i in range(len(images)):
        yield Image(
            images.place(i) + images.key(i),
            partial(read_image, images, i),
            None if read_index is None else partial(read_index, i),
            partial(_check_mask, images, i) if isinstance(images, MaskSource) else None,
        )


def _check_mask(source: MaskSource, index: int, file: Tensor) -> None:
    heights, widths = AnyFormat(OperatorDecoder()).open(Encoded([file])).sizes
    source.mask(index, int(heights[0]), int(widths[0]))


# Packed datasets


def _packed_images(
    root: Path, dataset: Dataset, split: str, damage: list[Damage]
) -> Iterator[Image]:
    """The images of a split; adds to `damage` how its files differ from its indexes."""
    folder, known = root / split, set[str]()
    for part in dataset.parts:
        if split not in part.splits or not part.splits[split].shards:
            continue
        known |= {part.part.index, *(shard.file for shard in part.splits[split].shards)}
        try:
            index = PartIndex(root, part, split)
            damage += _index_damage(folder, index)
        except (OSError, DataError, ReadError) as error:
            damage.append(_found(str(folder), error))
            continue
        for number, shard in enumerate(part.splits[split].shards):
            rows = np.flatnonzero(index["shard"] == number).tolist()
            yield from _shard_images(folder, shard, index, rows, damage)
    for file in sorted({*visible_files(folder)} - known):
        damage.append(Damage(str(folder / file), "not in the index: remove it"))


def _index_damage(folder: Path, index: PartIndex) -> Iterator[Damage]:
    for row, reason in index.wrong_rows():
        yield Damage(f"{folder}: {index.name(row)}", reason)
    if index.file.side_crc32() != index.split.side_crc32:
        reason = "its side indexes are damaged: training decodes without them; copy it again"
        yield Damage(str(index.file.file), reason)


def _shard_images(
    folder: Path, shard: Shard, index: PartIndex, rows: list[int], damage: list[Damage]
) -> Iterator[Image]:
    file = folder / shard.file
    try:
        require_shard(folder, shard)
    except (OSError, DataError, ReadError) as error:
        damage.append(_found(str(file), error, f" ({len(rows)} samples)"))
        return
    try:  # names and labels have no checksum of their own
        if crc32(file, 0, shard.bytes) != shard.crc32:
            damage.append(Damage(str(file), _WRONG_CHECKSUM))
    except (OSError, DataError, ReadError) as error:
        damage.append(_found(str(file), error))
    for row in rows:
        yield Image(f"{file}: {index.name(row)}", partial(_read, file, index, row))


def _read(file: Path, index: PartIndex, row: int) -> Tensor:
    """The image of a row. Raises OSError, and DataError if the shard holds another there."""
    image = read_bytes(file, int(index["offset"][row]), int(index["length"][row]))
    if zlib.crc32(image.numpy().data) != index["crc32"][row]:
        raise DataError(_WRONG_CHECKSUM)
    stated = [int(index[name][row]) for name in _HEADER]
    if is_jpeg(image) and jpeg_headers([image])[0].tolist() != stated:
        raise DataError("its size or orientation differs from the index: pack the dataset again")
    return image
