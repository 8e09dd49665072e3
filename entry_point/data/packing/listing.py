"""The list of source files, shuffled and cut into shards.

It is kept in an SQLite file, so memory does not grow with the number of files.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from hashlib import sha256
from itertools import islice
from pathlib import Path

import numpy as np

from entry_point.data.errors import DataError
from entry_point.data.packing.scan_source import Entry
from entry_point.data.plan.philox import stream_words

_SHUFFLE_STREAM = 21
_ROWS_PER_INSERT = 4096
_COLUMNS = "path, key, label, bytes, changed, rejected"
_TABLES = f"""
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE found (chance INTEGER, {_COLUMNS});
CREATE TABLE entries (place INTEGER PRIMARY KEY, {_COLUMNS});
"""
_INSERT = "INSERT INTO {} VALUES (?, ?, ?, ?, ?, ?, ?)"


class Listing:
    """The source's files by split and shard, in packing order."""

    def __init__(self, file: Path, seed: int, shard_bytes: float) -> None:
        """Creates `file`, which `close` removes."""
        file.unlink(missing_ok=True)
        self._file, self._seed, self._shard_bytes = file, seed, shard_bytes
        self._database = sqlite3.connect(file, isolation_level=None)
        self._database.executescript(_TABLES)
        self.shards: dict[str, list[range]] = {}
        """The shards of each split, as ranges of places in the list."""
        self._digest = sha256()

    def close(self) -> None:
        self._database.close()
        self._file.unlink()

    @property
    def fingerprint(self) -> str:
        """Hash of all entries and their order."""
        return self._digest.hexdigest()

    def __len__(self) -> int:
        return sum(len(shard) for shards in self.shards.values() for shard in shards)

    def entries(self, split: str, shard: int) -> list[Entry]:
        places = self.shards[split][shard]
        rows = self._database.execute(
            f"SELECT {_COLUMNS} FROM entries WHERE place >= ? AND place < ? ORDER BY place",
            (places.start, places.stop),
        )
        return [Entry(*row) for row in rows]

    def add(self, split: str, files: Iterator[Entry]) -> None:
        """List the files of a split."""
        number = 0
        while chunk := list(islice(files, _ROWS_PER_INSERT)):
            words = stream_words((self._seed, _SHUFFLE_STREAM), 0, number, len(chunk))
            # SQLite's integers are signed: flipping the top bit keeps the order.
            chances = (words ^ np.uint64(1 << 63)).view(np.int64).tolist()
            rows = [(chance, *entry) for chance, entry in zip(chances, chunk, strict=True)]
            self._database.execute("BEGIN")
            self._database.executemany(_INSERT.format("found"), rows)
            self._database.execute("COMMIT")
            number += len(chunk)
        self._require_distinct_keys()
        self._cut_into_shards(split)

    def _require_distinct_keys(self) -> None:
        repeated = self._database.execute(
            "SELECT min(path), max(path), key FROM found WHERE rejected = ''"
            " GROUP BY key HAVING count(*) > 1 LIMIT 1"
        ).fetchone()
        if repeated is not None:
            first, second, key = repeated
            raise DataError(f"{first} and {second} share the key {key}: rename one")

    def _cut_into_shards(self, split: str) -> None:
        """Shuffle the files that were found; start a new shard when the source bytes fill one."""
        rows = self._database.execute(f"SELECT {_COLUMNS} FROM found ORDER BY chance, rowid")
        first = place = len(self)
        shards: list[range] = []
        filled = 0
        self._database.execute("BEGIN")
        for row in rows:
            size = Entry(*row).bytes
            if place > first and filled + size > self._shard_bytes:
                shards.append(range(first, place))
                first, filled = place, 0
            self._digest.update(json.dumps([split, len(shards), *row]).encode())
            self._database.execute(_INSERT.format("entries"), (place, *row))
            filled += size
            place += 1
        self._database.execute("COMMIT")
        self._database.execute("DELETE FROM found")
        self.shards[split] = [*shards, range(first, place)]
