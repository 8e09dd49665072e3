"""What prediction reads, without labels: a folder, an image, a table of paths, a packed dataset, or
the tar and Parquet files of others.

All have an order, so that a part of the work is a range of it.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Protocol

import torch

from entry_point.config.data_config import PathsConfig
from entry_point.contract.printable import printable
from entry_point.data.sources.dataset_description import SPLITS, is_packed, read_dataset
from entry_point.data.sources.folder import IMAGE_SUFFIXES, visible_files
from entry_point.data.sources.formats import (
    holds_parquet,
    holds_tars,
    is_table,
    parquet_reader,
)
from entry_point.data.sources.shards import ShardSource
from entry_point.data.sources.source import FileSource, PathList, Source

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stretch:
    """Samples of one source that follow each other."""

    source: Source
    samples: range
    name: Callable[[int], str]
    """The name that a sample's predictions get. It may hold any bytes of a file name."""


class UnlabeledImages(Protocol):
    """The images to predict, in their order."""

    fingerprint: str
    """Hash of which images these are, by their names."""

    def __len__(self) -> int: ...

    def stretches(self, places: range) -> Iterator[Stretch]:
        """The images at these places."""
        ...


def open_images(path: Path, images: Path | None, table: PathsConfig) -> UnlabeledImages:
    """The images of a folder, an image file, a table, a packed dataset (or a split of one), a tar
    file, a Parquet file of images, or a folder of tar or Parquet files and no images.

    `images` is the folder that the paths of a table start from; None: the table's. Raises
    DataError.
    """
    if holds_parquet(path, table.path):
        return WholeSource(parquet_reader().all_rows(path, table.path))
    if is_table(path):
        from entry_point.data.sources.table import read_paths  # it imports polars

        return FileImages(*read_paths(path, images, table))
    if is_packed(path):
        return PackedImages(path, SPLITS)
    if path.name in SPLITS and is_packed(path.parent):
        return PackedImages(path.parent, (path.name,))
    if holds_tars(path):
        from entry_point.data.sources.webdataset import all_images

        return WholeSource(all_images(path))
    if path.is_dir():
        names, folder = _images_below(path), path
    else:
        names, folder = _path_list([path.name]), path.parent
    return FileImages(names, names, str(folder))


class FileImages(FileSource):
    """Files of any format, by lists in memory: as many bytes as their names and paths have."""

    def __init__(self, names: PathList, paths: PathList, folder: str) -> None:
        """`names` are those of the predictions; `paths` are relative to `folder`."""
        super().__init__([], torch.tensor(-1).expand(len(names)), [])
        self._names, self._paths, self.folder = names, paths, folder
        self.fingerprint = sha256(names.text.data).hexdigest()

    def file(self, index: int) -> str:
        return f"{self.folder}/{self._paths[index]}"

    def name(self, index: int) -> str:
        return self._names[index]

    def stretches(self, places: range) -> Iterator[Stretch]:
        if places:
            yield Stretch(self, places, self.name)


class PackedImages:
    """The shards that `make dataset` wrote: splits one after the other, in the order of shards."""

    def __init__(self, root: Path, splits: tuple[str, ...]) -> None:
        self._root = root
        dataset = read_dataset(root)
        self._samples = {name: dataset.samples(name) for name in splits if name in dataset.splits}
        content = json.dumps([asdict(part)["splits"] for part in dataset.parts])
        self.fingerprint = sha256(content.encode()).hexdigest()

    def __len__(self) -> int:
        return sum(self._samples.values())

    def stretches(self, places: range) -> Iterator[Stretch]:
        first = 0
        for name, samples in self._samples.items():
            start, stop = max(places.start - first, 0), min(places.stop - first, samples)
            if start < stop:
                source = ShardSource(self._root, name)
                yield Stretch(source, range(start, stop), partial(_in_split, name, source))
            first += samples


class NamedSource(Source, Protocol):
    def name(self, index: int) -> str: ...


class WholeSource:
    """All images of one source, in their order."""

    def __init__(self, source: NamedSource) -> None:
        self._source = source
        names = "\0".join(map(source.name, range(len(source))))
        self.fingerprint = sha256(names.encode(errors="surrogateescape")).hexdigest()

    def __len__(self) -> int:
        return len(self._source)

    def stretches(self, places: range) -> Iterator[Stretch]:
        if places:
            yield Stretch(self._source, places, self._source.name)


def _in_split(split: str, source: ShardSource, index: int) -> str:
    return f"{split}/{source.name(index)}"


def _images_below(folder: Path) -> PathList:
    """The images, in the order of `visible_files`; logs the other files."""
    names, others = list[str](), Counter[str]()
    for file in visible_files(folder):
        if file.lower().endswith(IMAGE_SUFFIXES):
            names.append(file)
        else:
            others[PurePath(file).suffix.lower() or "without a suffix"] += 1
    if others:
        kinds = ", ".join(f"{count} {printable(suffix)}" for suffix, count in others.most_common(9))
        log.warning(
            "%s: skipping %d files, which are no images by their names: %s; images end in %s",
            *(folder, others.total(), kinds, ", ".join(IMAGE_SUFFIXES)),
        )
    return _path_list(names)


def _path_list(names: list[str]) -> PathList:
    return PathList.of("\0".join([*names, ""]).encode(errors="surrogateescape"))
