"""What prediction reads, without labels: a folder, an image, a table of paths or a packed dataset.

All have an order, so that a part of the work is a range of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path, PurePath
from typing import Protocol

import torch
from PIL import Image

from entry_point.config.data_config import PathsConfig
from entry_point.data.errors import DataError
from entry_point.data.sources.class_folders import visible_files
from entry_point.data.sources.dataset_description import SPLITS, is_packed, read_dataset
from entry_point.data.sources.file_source import FileSource
from entry_point.data.sources.packed.shards import ShardSource
from entry_point.data.sources.source import Source
from entry_point.data.sources.table.bad_row import BadRowError
from entry_point.data.sources.table.choose_columns import choose_path
from entry_point.data.sources.table.columns import CHUNK, require_few_rows
from entry_point.data.sources.table.path_list import PathList, encoded, relative_paths
from entry_point.data.sources.table.table_files import is_table, open_table_file


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
    """The images of a folder, an image file, a table or a packed dataset (or a split of one).

    `images` is the folder that the paths of a table start from; None: the table's. Raises
    DataError.
    """
    if is_table(path):
        return _listed_in(path, images, table)
    if is_packed(path) and read_dataset(path).format == "shards":
        return PackedImages(path, SPLITS)
    if path.name in SPLITS and is_packed(path.parent):
        if read_dataset(path.parent).format == "shards":
            return PackedImages(path.parent, (path.name,))
    if path.is_dir():
        return FileImages(_images_below(path), partial(UnlabeledFiles, folder=str(path)))
    return FileImages(_path_list([path.name]), partial(UnlabeledFiles, folder=str(path.parent)))


class UnlabeledFiles(FileSource):
    """Image files of any format, in the order of their names."""

    def __init__(self, names: PathList, folder: str) -> None:
        """`names` are paths relative to `folder`."""
        super().__init__([], torch.tensor(-1).expand(len(names)), [])
        self._names, self._folder = names, folder

    def file(self, index: int) -> str:
        return f"{self._folder}/{self._names[index]}"

    def name(self, index: int) -> str:
        return self._names[index]


class ListedFiles(UnlabeledFiles):
    """The files that a table lists, named as in the table."""

    def __init__(self, names: PathList, folder: str, prefix: str | None) -> None:
        super().__init__(names, folder)
        self._prefix = prefix

    def file(self, index: int) -> str:
        (path,) = relative_paths([self._names[index]], self._folder, self._prefix, "table")
        return f"{self._folder}/{path}"


class FileImages:
    """Files, by a list of names in memory: as many bytes as the names have."""

    def __init__(self, names: PathList, open_files: Callable[[PathList], UnlabeledFiles]) -> None:
        self._names, self._open = names, open_files
        self.fingerprint = sha256(names.text.data).hexdigest()

    def __len__(self) -> int:
        return len(self._names)

    def stretches(self, places: range) -> Iterator[Stretch]:
        if places:
            source = self._open(self._names.cut(places))
            yield Stretch(source, range(len(source)), source.name)


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


def _in_split(split: str, source: ShardSource, index: int) -> str:
    return f"{split}/{source.name(index)}"


def _listed_in(file: Path, images: Path | None, settings: PathsConfig) -> FileImages:
    """All rows of a table, in its order. Raises DataError, which names the row."""
    table = open_table_file(file)
    column = choose_path(file, table.names, settings.path, "table")
    folder = os.path.normpath((images or file.parent).absolute())
    chunks: list[bytes] = []
    rows = 0
    try:
        for (paths,) in table.chunks([column]):
            if paths:
                relative_paths(paths, folder, settings.prefix, "table")
                chunks.append(encoded(paths))
            rows += len(paths)
            require_few_rows(file, rows)
    except BadRowError as error:
        raise DataError(f"{file}, row {rows + error.row + 1}: {error}") from error
    if not rows:
        raise DataError(f"{file} holds no rows, only a header")
    open_files = partial(ListedFiles, folder=folder, prefix=settings.prefix)
    return FileImages(PathList.of(chunks), open_files)


def _images_below(folder: Path) -> PathList:
    """Files in any format that Pillow reads, in the order of `visible_files`."""
    known = {end for end, kind in Image.registered_extensions().items() if kind in Image.OPEN}
    names = (file for file in visible_files(folder) if PurePath(file).suffix.lower() in known)
    chunks = []
    while chunk := list(islice(names, CHUNK)):
        chunks.append(_encoded(chunk))
    return PathList.of(chunks)


def _path_list(names: list[str]) -> PathList:
    return PathList.of([_encoded(names)])


def _encoded(names: list[str]) -> bytes:
    """As `encoded`, also for names that are not UTF-8."""
    return "\0".join([*names, ""]).encode(errors="surrogateescape")
