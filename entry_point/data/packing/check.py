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
from entry_point.contract.printable import printable
from entry_point.data.batch import Damage
from entry_point.data.decode.any_format import AnyFormat, is_jpeg
from entry_point.data.decode.metadata import UnusableImageError
from entry_point.data.decode.operator import OperatorDecoder
from entry_point.data.decode.pillow import read_photo
from entry_point.data.errors import DataError, ReadError
from entry_point.data.packing.scan import is_listed, require_table
from entry_point.data.progress_bar import in_threads
from entry_point.data.sources.dataset_description import (
    SPLITS,
    Dataset,
    Shard,
    is_packed,
    read_dataset,
    require_shard,
)
from entry_point.data.sources.file_bytes import crc32, read_bytes
from entry_point.data.sources.folder import (
    FolderSource,
    holds_masks,
    require_folder,
    split_folders,
    visible_files,
)
from entry_point.data.sources.formats import holds_parquet, holds_tars, is_table, parquet_reader
from entry_point.data.sources.index_file import FOLDER_INDEX, index_holder, look_up
from entry_point.data.sources.masks import MaskSource, open_masks
from entry_point.data.sources.shards import PartIndex
from entry_point.data.sources.source import Encoded, Source, read_image

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
    root = Path(config.root)
    if is_listed(root, config.table):
        from entry_point.data.sources.table import lists_masks, read_table  # it imports polars

        if is_table(root) and lists_masks(root, config.table):
            return _masked(config)
        images = Path(config.images) if config.images else None
        # Asks for no row of `val`: training may take a fraction of `train`.
        table = read_table(root, images, config.table, 0.0, "table")
        paths = (table.paths[place] for place in range(len(table.paths)))
        names = (f"row {row}: " for row in table.rows.tolist())
        rows = zip(paths, names, strict=True)
        return len(table.rows), _files(config, Path(table.folder), rows, damage)
    if holds_parquet(root, config.table.path):
        return _samples(root, parquet_reader().all_rows(root, config.table.path))
    require_table("root", root, config)
    if is_packed(root):
        if config.index_root is not None:
            must = f"needs images that are not packed; {root} has its own side indexes"
            raise ConfigError("index_root", config.index_root, must)
        dataset = read_dataset(root)
        images_of = (_packed_images(root, dataset, split, damage) for split in dataset.splits)
        total = sum(dataset.samples(split) for split in dataset.splits)
        return total, chain.from_iterable(images_of)
    if holds_tars(root):
        from entry_point.data.sources.webdataset import all_images  # optional

        return _samples(root, all_images(root))
    if holds_masks(root):
        return _masked(config)
    require_folder("root", root)
    splits = split_folders(root)
    # Without splits, a fraction of 0 leaves every image in `train`.
    fraction = None if splits else 0.0
    sources = [FolderSource(root, split, fraction) for split in splits or SPLITS[:1]]
    files = (source.file(i) for source in sources for i in range(len(source)))
    paths_and_names = ((file.removeprefix(f"{root}/"), "") for file in files)
    return sum(map(len, sources)), _files(config, root, paths_and_names, damage)


def _samples(root: Path, source: Source) -> tuple[int, Iterator[Image]]:
    """The images of files that hold many, of all splits. Raises DataError if there are none."""
    if not len(source):
        raise DataError(f"root={root} holds no images")
    images = (Image(source.key(i), partial(read_image, source, i)) for i in range(len(source)))
    return len(source), images


def _masked(config: CheckConfig) -> tuple[int, Iterator[Image]]:
    """Images whose masks are checked with them."""
    data = DataConfig(format="masks", root=config.root, images=config.images, table=config.table)
    sources = [open_masks(data, Path(config.root), split) for split in SPLITS]

    def check(source: MaskSource, index: int, file: Tensor) -> None:
        heights, widths = AnyFormat(OperatorDecoder()).open(Encoded([file])).sizes
        source.mask(index, int(heights[0]), int(widths[0]))

    images = (
        Image(source.key(i), partial(read_image, source, i), None, partial(check, source, i))
        for source in sources
        for i in range(len(source))
    )
    return sum(map(len, sources)), images


def _files(
    config: CheckConfig, folder: Path, files: Iterable[tuple[str, str]], damage: list[Damage]
) -> Iterator[Image]:
    """Files by their paths below `folder`, and what comes before these in the images' keys."""
    index_root = Path(config.index_root) if config.index_root else None
    data = DataConfig(
        "manifest",
        root=config.root,
        images=config.images,
        table=config.table,
        index_root=config.index_root,
    )
    holder, indexes = index_holder(index_root, folder, data.index_command(), "index_root"), None
    if holder is not None:
        files = list(files)
        try:
            indexes, _ = look_up(holder, [path for path, _ in files])
        except (OSError, DataError, ReadError) as error:
            damage.append(_found(str(holder / FOLDER_INDEX), error))
    for row, (path, name) in enumerate(files):
        file = f"{folder}/{path}"
        read_index = None if indexes is None else partial(indexes.one, row)
        yield Image(printable(f"{name}{file}"), partial(read_bytes, file), read_index)


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
