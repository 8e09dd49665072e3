"""Reads a dataset end to end: every file, every checksum, every pixel."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from custom_op import decode_and_crop_jpeg, index_jpeg, jpeg_headers, jpeg_size
from entry_point.config.config_errors import ConfigError
from entry_point.config.packing_config import CheckConfig
from entry_point.data.batch import Damage
from entry_point.data.decode.decode import is_jpeg, upright_sizes
from entry_point.data.decode.pillow import read_photo
from entry_point.data.errors import DataError
from entry_point.data.packing.statistics import class_lines, image_statistics, lines_of
from entry_point.data.plan.crops import Geometry
from entry_point.data.plan.samples import Ints
from entry_point.data.progress_bar import in_threads
from entry_point.data.sources.dataset import open_dataset
from entry_point.data.sources.dataset_description import (
    Description,
    Shard,
    read_dataset,
    require_shard,
)
from entry_point.data.sources.file_bytes import crc32, read_bytes
from entry_point.data.sources.folder import Tree
from entry_point.data.sources.shards import PartIndex
from entry_point.data.sources.side_index_store import SideIndexStore
from entry_point.data.sources.source import Encoded, Source, read_image, read_labels
from entry_point.data.sources.splits import WHOLE
from entry_point.job.program import ReadError
from entry_point.job.text import counted

T = TypeVar("T")

_HEADER = ("height", "width", "orientation")
_WRONG_CHECKSUM = "checksum differs: copy it again or pack the dataset again"
_WRONG_INDEX = (
    "its side index does not match the file, so it decodes slower, to the same pixels; `make "
    'dataset ARGS="source=FOLDER output_format=index"` makes the indexes again'
)


@dataclass
class Checked:
    """The results of reading a dataset."""

    images: int = 0
    damage: list[Damage] = field(default_factory=list)
    statistics: list[str] = field(default_factory=list)
    """Lines about the images that can be decoded."""

    def tried(self, key: object, function: Callable[..., T], *arguments: object) -> T | None:
        """Returns the function's result; if it cannot read, records damage and returns None."""
        try:
            return function(*arguments)
        except (OSError, DataError, ReadError) as error:
            self.damage.append(Damage(str(key), str(error)))
            return None


def check_dataset(config: CheckConfig) -> Checked:
    """Read every image of the dataset.

    Raises DataError if there is no dataset, ReadError if the disk fails while opening it, and
    ConfigError for an argument that does not suit the dataset.
    """
    dataset = open_dataset(config.dataset(), Path(config.root), for_training=False)
    checked, looks = Checked(), array("d")
    if dataset.data.format == "shards":
        if config.index_root is not None:
            message = f"needs images that are not packed; {dataset.root} has its own side indexes"
            raise ConfigError("index_root", config.index_root, message)
        packed = read_dataset(dataset.root)
        total = sum(map(packed.samples, dataset.splits))
        images = _packed_images(dataset.root, packed.parts, dataset.splits, checked)
    else:
        source = dataset.source(WHOLE)
        total, images = len(source), ((source, i) for i in range(len(source)))
        if (store := _prebuilt_index_store(source)) is not None:
            checked.tried(store.file, store.require_sound)
    check = partial(_check, dataset.data.gray_bits)
    for found in in_threads(check, images, total, "checking"):
        checked.images += 1
        if isinstance(found, Damage):
            checked.damage.append(found)
        else:
            looks.extend(found)
    checked.statistics = [*class_lines(dataset), *lines_of(looks)]
    return checked


def _check(gray_bits: int, image: tuple[Source, int]) -> Damage | NDArray[np.float64]:
    """Returns the image's damage, or its statistics if it is intact, see `image_statistics`."""
    source, i = image
    key = source.place(i) + source.key(i)
    try:
        file = read_image(source, i)
        if jpeg := is_jpeg(file):
            pixels = decode_and_crop_jpeg(file, 0, 0, *jpeg_size(file)).permute(1, 2, 0).numpy()
        else:
            pixels = np.asarray(read_photo(file, gray_bits=gray_bits))
        sizes = upright_sizes(Encoded([file]))
        _check_targets(source, i, *sizes)
        _check_index(source, i, file)
        return image_statistics(pixels, sizes, jpeg)
    except OSError as error:
        return Damage(key, f"cannot be read: {error.strerror}")
    # Includes DataError, JpegError, UnusableImageError, and errors of torch and your own source.
    except (ReadError, RuntimeError, ValueError) as error:
        return Damage(key, str(error))


def _check_targets(source: Source, i: int, heights: Ints, widths: Ints) -> None:
    if source.kind == "targets":
        whole = np.array([[0, 0, heights[0], widths[0]]])
        unflipped, side = np.zeros(1, bool), int(heights[0])
        geometry = Geometry(side, whole, unflipped, heights, widths, training=False)
        read_labels(source, np.array([i]), geometry)


def _check_index(source: Source, i: int, file: Tensor) -> None:
    if _prebuilt_index_store(source) is not None:
        index = (source.indexes(np.array([i])) or [torch.empty(0)])[0]
        if len(index) and not (is_jpeg(file) and torch.equal(index_jpeg(file), index)):
            raise DataError(_WRONG_INDEX)


def _prebuilt_index_store(source: Source) -> SideIndexStore | None:
    """Returns the source's store of side indexes if it was made beforehand, else None."""
    store = source.index_store
    return None if store is None or store.grows else store


class _PackedShard(Source):
    """Reads the images of one shard, found by the index of its part."""

    def __init__(self, folder: Path, index: PartIndex, shard: Shard, number: int) -> None:
        self.file, self.index = folder / shard.file, index
        self.rows = np.flatnonzero(index["shard"] == number).tolist()

    def __len__(self) -> int:
        return len(self.rows)

    def key(self, index: int) -> str:
        return f"{self.file}: {self.index.name(self.rows[index])}"

    def read(self, index: int) -> Tensor:
        row, of = self.rows[index], self.index
        image = read_bytes(self.file, int(of["offset"][row]), int(of["length"][row]))
        if zlib.crc32(image.numpy().data) != of["crc32"][row]:
            raise DataError(_WRONG_CHECKSUM)
        stated = [int(of[name][row]) for name in _HEADER]
        if is_jpeg(image) and jpeg_headers([image])[0].tolist() != stated:
            message = "its size or orientation differs from the index: pack the dataset again"
            raise DataError(message)
        return image


def _packed_images(
    root: Path, parts: Sequence[Description], splits: Sequence[str], checked: Checked
) -> Iterator[tuple[Source, int]]:
    """Yields the images of a packed dataset; records where files and indexes differ in
    `checked`."""
    for split in splits:
        folder, known = root / split, set[str]()
        for part in parts:
            if split not in part.splits or not (shards := part.splits[split].shards):
                continue
            known |= {part.part.index, *(shard.file for shard in shards)}
            index = checked.tried(folder, PartIndex, root, part, split)
            if index is None:
                continue
            for row, reason in index.wrong_rows():
                checked.damage.append(Damage(f"{folder}: {index.name(row)}", reason))
            for number, shard in enumerate(shards):
                images = _PackedShard(folder, index, shard, number)
                if _shard_is_readable(images, shard, checked):
                    yield from ((images, i) for i in range(len(images)))
        for file in sorted({*Tree(folder).files()} - known):
            checked.damage.append(Damage(str(folder / file), "not in the index: remove it"))


def _shard_is_readable(images: _PackedShard, shard: Shard, checked: Checked) -> bool:
    key = f"{images.file} ({counted(len(images), 'sample')})"
    before = len(checked.damage)
    checked.tried(key, require_shard, images.file.parent, shard)
    if len(checked.damage) > before:
        return False
    # The shard's checksum covers names, labels and side indexes, which have none themselves.
    found = checked.tried(images.file, crc32, images.file, 0, shard.bytes)
    if found not in (None, shard.crc32):
        checked.damage.append(Damage(str(images.file), _WRONG_CHECKSUM))
    return True
