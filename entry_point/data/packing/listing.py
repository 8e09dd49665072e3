"""What there is to pack: files, labels, keys, in an order that depends on nothing else.

The list is kept in an SQLite file, so that memory does not grow with the number of files.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path, PurePosixPath

import numpy as np

from entry_point.data.errors import DataError
from entry_point.data.folder import SPLITS, class_names, files_below
from entry_point.data.philox import stream_words

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
_SHUFFLE_STREAM = 21
_AT_ONCE = 4096
_TABLES = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE found (chance INTEGER, path TEXT, key TEXT, label INTEGER, bytes INTEGER);
CREATE TABLE entries (place INTEGER PRIMARY KEY, path TEXT, key TEXT, label INTEGER, bytes INTEGER);
"""


@dataclass(frozen=True)
class Entry:
    """One file of the source."""

    path: str
    """Relative to the source, with the split and the class in front."""
    key: str
    """<class>/<name without suffix>: the name of its samples in the shards."""
    label: int
    bytes: int


def list_classes(source: Path, file: str | None) -> list[str]:
    """Class names: those in `file`, else the folders that all splits agree on."""
    if file is not None:
        names = [line.strip() for line in Path(file).read_text("utf-8").splitlines()]
        return sorted(name for name in names if name)
    splits = list_splits(source)
    classes = class_names(source, splits[0])
    for split in splits[1:]:
        difference = sorted(set(classes) ^ set(class_names(source, split)))
        if difference:
            raise DataError(
                f"the class folders of {source / splits[0]} and {source / split} differ: "
                f"{', '.join(difference[:5])} in only one; classes=FILE names them all"
            )
    return classes


def list_splits(source: Path) -> list[str]:
    if not source.is_dir():
        raise DataError(f"source={source}: there is no such folder")
    splits = [split for split in SPLITS if (source / split).is_dir()]
    if not splits:
        raise DataError(f"source={source} has neither of the folders {', '.join(SPLITS)}")
    return splits


class Listing:
    """The files of a source, by split and shard, in the order in which they are packed."""

    def __init__(self, file: Path, seed: int, shard_bytes: float) -> None:
        """`file` is made anew; it is of no use afterwards."""
        file.unlink(missing_ok=True)
        self._file, self._seed, self._shard_bytes = file, seed, shard_bytes
        self._database = sqlite3.connect(file, isolation_level=None)
        self._database.executescript(_TABLES)
        self._shards: dict[str, list[range]] = {}
        self._digest = sha256()

    def close(self) -> None:
        self._database.close()
        self._file.unlink()

    @property
    def splits(self) -> list[str]:
        return list(self._shards)

    @property
    def fingerprint(self) -> str:
        """Of all entries and their order."""
        return self._digest.hexdigest()

    def __len__(self) -> int:
        return sum(len(shard) for shards in self._shards.values() for shard in shards)

    def shards(self, split: str) -> int:
        """Their number."""
        return len(self._shards[split])

    def entries(self, split: str, shard: int) -> list[Entry]:
        places = self._shards[split][shard]
        rows = self._database.execute(
            "SELECT path, key, label, bytes FROM entries WHERE place >= ? AND place < ?"
            " ORDER BY place",
            (places.start, places.stop),
        )
        return [Entry(*row) for row in rows]

    def add(self, source: Path, split: str, classes: list[str], whole: bool) -> None:
        """List a split. A class without any file is an error if `whole`."""
        found = _found(source, split, classes, whole)
        number = 0
        while some := list(islice(found, _AT_ONCE)):
            words = stream_words((self._seed, _SHUFFLE_STREAM), 0, number, len(some))
            # SQLite's integers have a sign: the same order, moved.
            chances = (words ^ np.uint64(1 << 63)).view(np.int64).tolist()
            rows = [
                (chance, entry.path, entry.key, entry.label, entry.bytes)
                for chance, entry in zip(chances, some, strict=True)
            ]
            self._database.execute("BEGIN")
            self._database.executemany("INSERT INTO found VALUES (?, ?, ?, ?, ?)", rows)
            self._database.execute("COMMIT")
            number += len(some)
        self._require_distinct_keys()
        self._order(split)

    def _require_distinct_keys(self) -> None:
        twice = self._database.execute(
            "SELECT min(path), max(path), key FROM found GROUP BY key HAVING count(*) > 1 LIMIT 1"
        ).fetchone()
        if twice is not None:
            raise DataError(f"{twice[0]} and {twice[1]} share the key {twice[2]}: rename one")

    def _order(self, split: str) -> None:
        """Shuffle what was found, and cut it where the source bytes fill a shard."""
        rows = self._database.execute(
            "SELECT path, key, label, bytes FROM found ORDER BY chance, rowid"
        )
        first = place = len(self)
        shards: list[range] = []
        filled = 0
        self._database.execute("BEGIN")
        for row in rows:
            if place > first and filled + row[-1] > self._shard_bytes:
                shards.append(range(first, place))
                first, filled = place, 0
            self._digest.update(json.dumps([split, len(shards), *row]).encode())
            self._database.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", (place, *row))
            filled += row[-1]
            place += 1
        self._database.execute("COMMIT")
        self._database.execute("DELETE FROM found")
        self._shards[split] = [*shards, range(first, place)]


def _found(source: Path, split: str, classes: list[str], whole: bool) -> Iterator[Entry]:
    """All files of a split in name order."""
    labels = {name: label for label, name in enumerate(classes)}
    present = class_names(source, split)
    for name in present:
        if name not in labels:
            raise DataError(f"{source / split / name}: {name} is not in the list of classes")
        empty = True
        for file in files_below(source / split / name):
            empty = False
            yield _entry(source, split, name, file, labels[name])
        if empty:
            raise DataError(f"{source / split / name} is empty: remove it or add images")
    if whole and len(present) < len(classes):
        raise DataError(f"{source / split} lacks {sorted(set(classes) - set(present))}")


def _entry(source: Path, split: str, name: str, file: str, label: int) -> Entry:
    # Readers of tar shards take what follows the first dot of a file's name as its kind.
    stem = PurePosixPath(file).with_suffix("")
    key = PurePosixPath(name, stem.parent, stem.name.replace(".", "_"))
    path = f"{split}/{name}/{file}"
    return Entry(path, str(key), label, (source / path).stat().st_size)
