"""Scans a source: which files to pack, in which shards, and why the others are rejected.

A source is a folder of splits and classes, or the rows of a table.
"""

from __future__ import annotations

import json
import logging
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import TableConfig
from entry_point.config.packing_config import CheckConfig, OptimizeConfig
from entry_point.contract.printable import printable
from entry_point.data.errors import DataError
from entry_point.data.plan.philox import permutation
from entry_point.data.sources.dataset_description import SPLITS, Kind
from entry_point.data.sources.folder import (
    chosen_for_val,
    class_names,
    existing_splits,
    layout_of,
    loose_files,
    require_folder,
    shared_class_names,
    visible_files,
)
from entry_point.data.sources.formats import is_table
from entry_point.data.sources.index_file import FOLDER_INDEX

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
_SEED, _SHUFFLE_STREAM = 0, 21

log = logging.getLogger(__name__)


class Entry(NamedTuple):
    """One file of the source."""

    path: str
    """Relative to the source: <split>/<class>/..., <class>/..., or as in the table."""
    label: Any
    """The class's number, the ascending numbers of labels, or a number for each target."""
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

    def name_of(self, split: str, entry: Entry) -> str:
        """<class>/..., which is the same in a folder without splits."""
        folder = self._layout.folders[split]
        return entry.path.removeprefix(f"{folder}/") if folder else entry.path

    def entries(self, split: str) -> Iterator[Entry]:
        """All files of a split but hidden ones, in name order.

        Raises DataError, unless it is a share of the files, for a class that has no image.
        """
        fraction = self._layout.fraction
        for entry in self._scan(self._layout.folders[split]):
            name = self.name_of(split, entry)
            if fraction is None or chosen_for_val([name], fraction)[0] == (split == "val"):
                yield entry

    def _scan(self, folder: str) -> Iterator[Entry]:
        inside = PurePosixPath(folder)
        for file in loose_files(self.root / folder):
            yield _entry(self.root, str(inside / file), -1, "lies in no class folder")
        labels = {name: label for label, name in enumerate(self.classes)}
        for name in class_names(self.root, folder, least=int(not self._share)):
            images = 0
            for file in visible_files(self.root / folder / name):
                entry = _entry(self.root, str(inside / name / file), labels[name])
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

    def name_of(self, split: str, entry: Entry) -> str:  # noqa: ARG002 - as FolderContents
        return entry.path

    def entries(self, split: str) -> Iterator[Entry]:
        for place in self._table.places(split).tolist():
            yield _entry(self.root, self._table.paths[place], self._label(place))

    def _label(self, place: int) -> Any:
        value = self._table.labels.values[place]
        return (value.nonzero()[0] if self.kind == "labels" else value).tolist()


Contents = FolderContents | TableContents
"""The files to pack, of each split, and their labels."""


def contents_of(source: Path, options: OptimizeConfig, share: bool = False) -> Contents:
    """What `source` holds; of a folder, perhaps only a `share` of the files, without some classes.

    Raises DataError and ConfigError for a source that cannot be packed.
    """
    if is_table(source):
        return TableContents(source, options)
    require_table("source", source, options)
    require_folder("source", source)
    return FolderContents(source, options.val_fraction, share)


def require_table(key: str, source: Path, config: OptimizeConfig | CheckConfig) -> None:
    """Raise ConfigError for settings of a table, as `source`, the setting `key`, is none."""
    for name, given in (("images", config.images), ("table", config.table)):
        if given not in (None, TableConfig()):
            raise ConfigError(name, must=f"needs a table as {key}, not {source}")


def _entry(root: Path, path: str, label: Any, rejected: str = "") -> Entry:
    size = changed = 0
    rejected = rejected or _reject_by_name(path)
    if not rejected:
        try:
            status = (root / path).stat()
            size, changed = status.st_size, status.st_mtime_ns
            if not stat.S_ISREG(status.st_mode):
                rejected = "is no regular file"
        except OSError as error:
            rejected = f"unreadable: {error.strerror}"
    return Entry(_printable(path), label, size, changed, rejected)


def _reject_by_name(path: str) -> str:
    if not path.lower().endswith(IMAGE_SUFFIXES):
        return f"no image by its name, which ends in none of {', '.join(IMAGE_SUFFIXES)}"
    return "" if _printable(path) == path else "its name is no UTF-8: rename it"


def _printable(name: str) -> str:
    """The name, with the bytes that are not UTF-8 as escapes."""
    return name.encode("utf-8", "backslashreplace").decode()


class Listing:
    """The files of a split, shuffled and cut into shards."""

    def __init__(self, contents: Contents, split: str, shard_bytes: float) -> None:
        """Raises DataError if two files have the same key."""
        self._contents, self._split = contents, split
        entries = list(contents.entries(split))
        self._shared: set[str] = set()
        """Keys that several files would have, such as orange.jpg and orange.tiff."""
        self._tell_apart([entry for entry in entries if not entry.rejected])
        order = permutation((_SEED, _SHUFFLE_STREAM), len(entries), 0).tolist()
        self.shards = _cut([entries[row] for row in order], shard_bytes)

    def add_to(self, files: Any, times: Any) -> None:
        """Update a hash with all files and their shards, and one with their modification times."""
        files.update(self._split.encode())
        for number, shard in enumerate(self.shards):
            for path, label, size, changed, rejected in shard:
                files.update(json.dumps([number, path, label, size, rejected]).encode())
                times.update(changed.to_bytes(8, "little", signed=True))

    def key(self, entry: Entry) -> str:
        """Name of the members in the shard: the file's without its suffix, unless it is shared."""
        name = self._contents.name_of(self._split, entry)
        key = _key(name, PurePosixPath(name).stem)
        return _key(name, PurePosixPath(name).name) if key in self._shared else key

    def _tell_apart(self, usable: list[Entry]) -> None:
        self._shared = _repeated(map(self.key, usable))
        if self._shared and (again := _repeated(map(self.key, usable))):
            key = min(again)
            first, second, *_ = (entry.path for entry in usable if self.key(entry) == key)
            raise DataError(f"{first} and {second} share the key {key}: rename one")


def _key(name: str, file: str) -> str:
    # Readers of tar shards treat everything after a name's first dot as the member's type.
    folder, slash, _ = name.rpartition("/")
    return f"{folder}{slash}{file.replace('.', '_')}"


def _repeated(keys: Iterable[str]) -> set[str]:
    return {key for key, count in Counter(keys).items() if count > 1}


def _cut(entries: list[Entry], shard_bytes: float) -> list[list[Entry]]:
    """Start a new shard when the source bytes fill one."""
    shards: list[list[Entry]] = []
    filled = 0
    for entry in entries:
        if not shards or filled + entry.bytes > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(entry)
        filled += entry.bytes
    return shards
