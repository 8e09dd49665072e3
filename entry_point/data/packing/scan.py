"""Scans a source: which files to pack, in which shards, and why the others are rejected.

A source is a folder of splits and classes, or the rows of a table.
"""

from __future__ import annotations

import json
import logging
import stat
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import TableConfig
from entry_point.config.packing_config import OptimizeConfig
from entry_point.contract.printable import printable
from entry_point.data.errors import DataError
from entry_point.data.plan.philox import permutation
from entry_point.data.sources.dataset_description import SPLITS, Kind
from entry_point.data.sources.folder import (
    all_files,
    chosen_for_val,
    class_names,
    existing_splits,
    layout_of,
    loose_files,
    require_folder,
    shared_class_names,
)
from entry_point.data.sources.formats import is_table
from entry_point.data.sources.index_file import FOLDER_INDEX

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
_SHUFFLE_STREAM = 21

log = logging.getLogger(__name__)


class Entry(NamedTuple):
    """One file of the source."""

    path: str
    """Relative to the source: <split>/<class>/..., <class>/..., or as in the table."""
    name: str
    """<class>/..., or the path in the table."""
    label: int | str
    """The class's number. Of the kinds `labels` and `numbers`: the label as JSON."""
    bytes: int
    changed: int
    """Modification time in nanoseconds."""
    rejected: str
    """Why the file is not packed, or empty.

    The text is part of the fingerprint: a new wording makes finished datasets look outdated."""


class FolderContents:
    """A folder of splits and classes, or of classes; see `FolderSource` for `val_fraction`."""

    kind: Kind = "class"

    def __init__(self, source: Path, val_fraction: float | None, share: bool) -> None:
        self.root, self._layout = source, layout_of(source, val_fraction)
        self._share = share
        found = existing_splits(source)
        if share:
            names = {name for split in found or [""] for name in class_names(source, split, 0)}
            self.classes = sorted(names)
        else:
            self.classes = shared_class_names(source, found or [""], "rename or add a folder")
        self.splits = found if self._layout.fraction is None else list(SPLITS)
        if found:
            self._warn_of_others()
        if line := self._layout.describe(source):
            log.info("%s", line)

    def _warn_of_others(self) -> None:
        """Name what is beside the splits."""
        known = (*SPLITS, FOLDER_INDEX)
        others = sorted(each.name for each in self.root.iterdir() if each.name not in known)
        if others:
            names = printable(", ".join(others[:5]))
            log.warning("%s: only train and val are packed, ignored: %s", self.root, names)

    def entries(self, split: str) -> Iterator[Entry]:
        """All files of a split, in name order.

        Raises DataError, unless it is a share of the files, for a class that has no image.
        """
        folder, fraction = self._layout.folders[split], self._layout.fraction
        for entry in self._scan(folder):
            if fraction is None or chosen_for_val([entry.name], fraction)[0] == (split == "val"):
                yield entry

    def _scan(self, folder: str) -> Iterator[Entry]:
        for file in loose_files(self.root / folder):
            path = PurePosixPath(folder, file).as_posix()
            yield _entry(self.root, path, file, -1, "lies in no class folder")
        labels = {name: label for label, name in enumerate(self.classes)}
        for name in class_names(self.root, folder, least=int(not self._share)):
            images = 0
            for file in all_files(self.root / folder / name):
                inside = f"{name}/{file}"
                path = PurePosixPath(folder, inside).as_posix()
                entry = _entry(self.root, path, inside, labels[name])
                images += not entry.rejected
                yield entry
            if not images and not self._share:
                where = self.root / folder / name
                raise DataError(f"{where} holds no image: add images or remove it")


class TableContents:
    """The rows of a table, in its order."""

    def __init__(self, source: Path, options: OptimizeConfig) -> None:
        images = Path(options.images) if options.images else None
        from entry_point.data.sources.table import read_table  # it imports polars

        self._table = read_table(source, images, options.table, options.val_fraction, "table")
        self.root = Path(self._table.folder)
        self.classes, self.kind = self._table.labels.names, self._table.labels.kind
        self.splits = list(SPLITS)

    def entries(self, split: str) -> Iterator[Entry]:
        for place in self._table.places(split).tolist():
            path = self._table.paths[place]
            yield _entry(self.root, path, path, self._label(place))

    def _label(self, place: int) -> int | str:
        value = self._table.labels.values[place]
        if self.kind == "class":
            return int(value)
        return json.dumps((value.nonzero()[0] if self.kind == "labels" else value).tolist())


Contents = FolderContents | TableContents
"""The files to pack, of each split, and their labels."""


def contents_of(source: Path, options: OptimizeConfig, share: bool = False) -> Contents:
    """What `source` holds; of a folder, perhaps only a `share` of the files, without some classes.

    Raises DataError and ConfigError for a source that cannot be packed.
    """
    return TableContents(source, options) if is_table(source) else _folder(source, options, share)


def _folder(source: Path, options: OptimizeConfig, share: bool) -> FolderContents:
    if options.images is not None or options.table != TableConfig():
        key = "table" if options.images is None else "images"
        raise ConfigError(key, must=f"needs a table as source, not the folder {source}")
    require_folder("source", source)
    return FolderContents(source, options.val_fraction, share)


def _entry(source: Path, path: str, name: str, label: int | str, rejected: str = "") -> Entry:
    size = changed = 0
    rejected = rejected or _reject_by_name(path)
    if not rejected:
        try:
            status = (source / path).stat()
            size, changed = status.st_size, status.st_mtime_ns
            if not stat.S_ISREG(status.st_mode):
                rejected = "is no regular file"
        except OSError as error:
            rejected = f"unreadable: {error.strerror}"
    return Entry(_printable(path), _printable(name), label, size, changed, rejected)


def _reject_by_name(path: str) -> str:
    if PurePosixPath(path).name.startswith("."):
        return "hidden"
    if not path.lower().endswith(IMAGE_SUFFIXES):
        return f"no image by its name, which ends in none of {', '.join(IMAGE_SUFFIXES)}"
    return "" if _printable(path) == path else "its name is no UTF-8: rename it"


def _printable(name: str) -> str:
    """The name, with the bytes that are not UTF-8 as escapes."""
    return name.encode("utf-8", "backslashreplace").decode()


class File(NamedTuple):
    """One file to pack."""

    path: str
    key: str
    """Name of the sample's members in its shard, without their suffixes."""
    label: int | str
    rejected: str


class Listing:
    """The files of a split, shuffled and cut into shards: about 150 bytes of memory for each."""

    def __init__(self, entries: Iterable[Entry], seed: int, shard_bytes: float) -> None:
        """Raises DataError if two files have the same key."""
        self._paths: list[str] = []
        self._labels: list[int | str] = []
        self._rejected: dict[int, str] = {}
        self._bytes, self._changed = array("q"), array("q")
        self._name_start = 0
        for row, entry in enumerate(entries):
            self._paths.append(entry.path)
            self._labels.append(entry.label)
            self._bytes.append(entry.bytes)
            self._changed.append(entry.changed)
            self._name_start = len(entry.path) - len(entry.name)  # the same for all of a split
            if entry.rejected:
                self._rejected[row] = entry.rejected
        self._ambiguous: set[int] = set()
        """The files that keep their suffix in their key, such as orange.jpg and orange.tiff."""
        self._tell_apart()
        self._order = permutation((seed, _SHUFFLE_STREAM), len(self._paths), 0)
        self.shards = self._cut(shard_bytes)
        """Ranges of places in the shuffled order."""

    def __len__(self) -> int:
        return len(self._paths)

    def files(self, shard: int) -> list[File]:
        rows = self._order[slice(self.shards[shard].start, self.shards[shard].stop)].tolist()
        return [
            File(self._paths[row], self._key(row), self._labels[row], self._rejected.get(row, ""))
            for row in rows
        ]

    def add_to(self, files: Any, times: Any) -> None:
        """Update a hash with all files and their shards, and one with their modification times."""
        times.update(self._changed.tobytes())
        for number, shard in enumerate(self.shards):
            for row in self._order[shard.start : shard.stop].tolist():
                described = number, self._paths[row], self._labels[row], self._bytes[row]
                reason = self._rejected.get(row, "")
                files.update(json.dumps([*described, reason]).encode())

    def _key(self, row: int) -> str:
        """The name, without its suffix unless another file would have the same key."""
        # Readers of tar shards treat everything after a name's first dot as the member's type.
        folder, slash, file = self._paths[row][self._name_start :].rpartition("/")
        stem = file if row in self._ambiguous else file.rpartition(".")[0]
        return f"{folder}{slash}{stem.replace('.', '_')}"

    def _tell_apart(self) -> None:
        self._ambiguous.update(self._sharing_a_key())
        if rows := self._sharing_a_key() if self._ambiguous else []:
            key = self._key(rows[0])
            first, second, *_ = (self._paths[row] for row in rows if self._key(row) == key)
            raise DataError(f"{first} and {second} share the key {key}: rename one")

    def _sharing_a_key(self) -> list[int]:
        """The usable files whose key another one has, too."""
        usable = np.array([row for row in range(len(self)) if row not in self._rejected], np.int64)
        # Hashes take less memory than the keys.
        hashes = np.array([hash(self._key(row)) for row in usable.tolist()], np.int64)
        _, places, counts = np.unique(hashes, return_inverse=True, return_counts=True)
        return list(usable[counts[places] > 1].tolist())

    def _cut(self, shard_bytes: float) -> list[range]:
        """Start a new shard when the source bytes fill one."""
        shards: list[range] = []
        first = filled = 0
        for place, row in enumerate(self._order.tolist()):
            size = self._bytes[row]
            if place > first and filled + size > shard_bytes:
                shards.append(range(first, place))
                first, filled = place, 0
            filled += size
        return [*shards, range(first, len(self))] if len(self) else []
