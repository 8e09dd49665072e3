"""Scans a source: which files to pack, under which keys, and in which shards.

Packing takes the files that training would: those in a folder of splits and classes, the rows of a
table, or the samples of tar and Parquet files.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import numpy as np

from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import DataConfig, TableConfig
from entry_point.config.mistakes import check_config
from entry_point.config.packing_config import CheckConfig, OptimizeConfig
from entry_point.contract.printable import printable
from entry_point.data.errors import DataError
from entry_point.data.plan.philox import permutation
from entry_point.data.plan.samples import Ints
from entry_point.data.sources.dataset_description import SPLITS
from entry_point.data.sources.folder import (
    FolderSource,
    class_names,
    layout_of,
    require_folder,
    split_folders,
)
from entry_point.data.sources.formats import (
    holds_parquet,
    holds_tars,
    is_table,
    metadata_tables,
    open_parquet,
)
from entry_point.data.sources.index_file import FOLDER_INDEX
from entry_point.data.sources.source import Source
from entry_point.data.sources.stream import StreamSource

_SEED, _SHUFFLE_STREAM = 0, 21

log = logging.getLogger(__name__)


class Packable(Source, Protocol):
    """What packing needs of a source: FileSource and ParquetSource have it."""

    def name(self, index: int) -> str:
        """The image's path below the source."""
        ...

    def status(self, index: int) -> tuple[int, int]:
        """Size in bytes, and modification time in nanoseconds; 0 of what cannot be read."""
        ...


def open_splits(
    source: Path, options: OptimizeConfig, share: bool = False
) -> Mapping[str, Packable]:
    """The splits of a folder, perhaps only a `share` of its files, a table, tar or Parquet files.

    Raises DataError and ConfigError for a source that cannot be packed.
    """
    fraction = options.val_fraction
    if is_listed(source, options.table):
        from entry_point.data.sources.table import ManifestSource, read_table  # it imports polars

        images = Path(options.images) if options.images else None
        table = read_table(source, images, options.table, fraction, "table")
        return {split: ManifestSource(table, split) for split in SPLITS}
    if holds_parquet(source, options.table.path):
        return open_rows(source, options.table, fraction)
    require_table("source", source, options)
    if holds_tars(source):
        from entry_point.data.sources.webdataset import open_tars

        tars = DataConfig(format="webdataset", root=str(source), val_fraction=fraction)
        return {split: open_tars(tars, source, split) for split in SPLITS}
    require_folder("source", source)
    found = split_folders(source)
    if found:
        _warn_of_others(source, found.values())
    splits = found if layout_of(source, fraction).fraction is None else SPLITS
    return {split: FolderSource(source, split, fraction, share=share) for split in splits}


def is_listed(source: Path, table: TableConfig) -> bool:
    """Whether a table lists the images. Of a folder with both, the class folders count."""
    if is_table(source):
        return not holds_parquet(source, table.path)
    return bool(metadata_tables(source)) and len(class_names(source, "train", least=0)) < 2


def open_rows(
    source: Path, table: TableConfig, fraction: float | None = None
) -> Mapping[str, Packable]:
    """The splits of a folder of Parquet files. Raises DataError and ConfigError."""
    data = check_config(
        {"format": "parquet", "root": str(source), "table": table, "val_fraction": fraction},
        DataConfig,
        "data",
    )
    return {split: open_parquet(data, source, split) for split in SPLITS}


def require_table(key: str, source: Path, config: OptimizeConfig | CheckConfig) -> None:
    """Raise ConfigError for settings of a table, as `source`, the setting `key`, is none."""
    for name, given in (("images", config.images), ("table", config.table)):
        if given not in (None, TableConfig()):
            raise ConfigError(name, must=f"needs a table as {key}, not {source}")


def _warn_of_others(folder: Path, splits: Iterable[str]) -> None:
    """Name what is beside the folders of the splits."""
    known = (*splits, FOLDER_INDEX)
    others = sorted(each.name for each in folder.iterdir() if each.name not in known)
    if others:
        names = printable(", ".join(others[:5]))
        log.warning("%s: only train and val are packed, ignored: %s", folder, names)


class Listing:
    """The files of a split, shuffled and cut into shards: about 180 bytes of memory for each."""

    def __init__(self, source: Packable, shard_bytes: float) -> None:
        """Raises DataError if two files have the same key."""
        self.source = source
        status = [source.status(i) for i in range(len(source))]
        self._bytes, self._changed = np.array(status, np.int64).reshape(-1, 2).T.copy()
        self._shared: set[str] = set()
        """Keys that several files would have, such as orange.jpg and orange.tiff."""
        self._tell_apart()
        self.shards = self._cut(shard_bytes)
        """The numbers of the images in the source."""

    def name(self, i: int) -> str:
        """<class>/..., or the path in the table, with the bytes that are not UTF-8 as escapes."""
        return self.source.name(i).encode("utf-8", "backslashreplace").decode()

    def key(self, i: int) -> str:
        """Name of the members in the shard: the file's without its suffix, unless it is shared."""
        path = PurePosixPath(self.name(i))
        key = _key(path, path.stem)
        return _key(path, path.name) if key in self._shared else key

    def label(self, i: int) -> Any:
        """The class's number, the ascending numbers of labels, or a number for each target."""
        label = self.source.labels[i]
        return (label.nonzero()[:, 0] if self.source.kind == "labels" else label).tolist()

    def add_to(self, files: Any, times: Any) -> None:
        """Update a hash with all files and their shards, and one with their modification times."""
        for number, shard in enumerate(self.shards):
            times.update(self._changed[shard].tobytes())
            for i in shard:
                described = number, self.name(i), self.label(i), int(self._bytes[i])
                files.update(json.dumps(described).encode())

    def _tell_apart(self) -> None:
        images = range(len(self.source))
        self._shared = _repeated(map(self.key, images))
        if self._shared and (again := _repeated(map(self.key, images))):
            key = min(again)
            first, second, *_ = (self.name(i) for i in images if self.key(i) == key)
            raise DataError(f"{first} and {second} share the key {key}: rename one")

    def _cut(self, shard_bytes: float) -> list[list[int]]:
        """Start a new shard when the source bytes fill one."""
        shards: list[list[int]] = []
        filled = 0
        for i in self._shuffled().tolist():
            size = int(self._bytes[i])
            if not shards or filled + size > shard_bytes:
                shards.append([])
                filled = 0
            shards[-1].append(i)
            filled += size
        return shards

    def _shuffled(self) -> Ints:
        """All images; those of a stream by its shards, each of which is read whole."""
        order = permutation((_SEED, _SHUFFLE_STREAM), len(self.source), 0)
        if not isinstance(self.source, StreamSource):
            return order
        shard_of = self.source.shard_of[order]
        _, first = np.unique(shard_of, return_index=True)
        place = np.zeros(shard_of.max() + 1, np.int64)
        place[shard_of[first]] = first
        return order[np.argsort(place[shard_of], kind="stable")]


def _key(path: PurePosixPath, file: str) -> str:
    # Readers of tar shards treat everything after a name's first dot as the member's type.
    return str(path.with_name(file.replace(".", "_")))


def _repeated(keys: Iterable[str]) -> set[str]:
    return {key for key, count in Counter(keys).items() if count > 1}
