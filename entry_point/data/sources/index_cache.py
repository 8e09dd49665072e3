"""Side indexes that are made while images are decoded, in a cache of this host.

Training on plain JPEG files makes an index of each file in the first epoch and starts decoding near
the crop from the second one on. A dataset folder has one SQLite database, which the ranks of a host
and later jobs share. It lies on a local disk: SQLite's locks do not work across hosts.

The cache only saves time. The decoder ignores an index that does not fit its file, so any content
gives the same pixels. The first error ends reading or writing in this process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FOLDER = Path(f"/var/tmp/jpeg-index-{os.getuid()}")
"""On a local disk; a home folder may be on a network file system, and /tmp in memory."""
MOST_BYTES = 4 << 30
"""Of a database: the indexes of about 3 million photographs of 100 KB."""
_PAGE_BYTES = 8192
_UNUSED_DAYS = 30

_SCHEMA = "CREATE TABLE IF NOT EXISTS indexes (path INTEGER PRIMARY KEY, content BLOB NOT NULL)"

log = logging.getLogger(__name__)
_said: dict[str, object] = {}


class IndexCache:
    """The side indexes of the images below `root`, by path."""

    def __init__(self, root: Path) -> None:
        name = blake2b(os.fsencode(root.resolve()), digest_size=12).hexdigest()
        self.file = FOLDER / f"{name}.sqlite"
        self._reads = self._writes = True
        self._connections = threading.local()

    def count(self) -> int:
        """Returns the number of indexes in the cache. Removes databases that no job has used for
        long."""
        found = 0
        with self._reading(), contextlib.closing(self._connect()) as database:
            found = database.execute("SELECT COUNT(*) FROM indexes").fetchone()[0]
            os.utime(self.file)
            _remove_unused(self.file.parent)
        return found

    def find(self, paths: Sequence[str]) -> list[Tensor]:
        """Returns the index of each file, uint8 (bytes,); empty for none."""
        keys = [_key(path) for path in paths]
        found: dict[int, bytes] = {}
        if self._reads:
            marks = ",".join("?" * len(keys))
            query = f"SELECT path, content FROM indexes WHERE path IN ({marks})"
            with self._reading():
                found.update(self._database().execute(query, keys))
        contents = (bytearray(found.get(key, b"")) for key in keys)
        return [torch.from_numpy(np.frombuffer(content, np.uint8)) for content in contents]

    def keep(self, paths: Sequence[str], indexes: Sequence[Tensor]) -> None:
        """Store the indexes that are not empty."""
        rows = [
            (_key(path), index.numpy().tobytes())
            for path, index in zip(paths, indexes, strict=True)
            if len(index)
        ]
        if not rows or not self._reads or not self._writes:
            return
        try:
            with self._database() as transaction:
                transaction.executemany("INSERT OR REPLACE INTO indexes VALUES (?, ?)", rows)
        except (OSError, sqlite3.Error) as error:
            self._writes = False
            _warn(self.file, str(error))
            return
        _say_once(
            logging.INFO,
            "indexing images while they are decoded: later epochs decode faster. The side indexes "
            f"are kept in {self.file}",
        )

    def _database(self) -> sqlite3.Connection:
        """This thread's connection.

        A forked process must neither use a connection of its parent nor close it, which would
        remove the log that others still write to.
        """
        opened: dict[int, sqlite3.Connection]
        opened = vars(self._connections).setdefault("by_process", {})
        if os.getpid() not in opened:
            opened[os.getpid()] = self._connect()
        return opened[os.getpid()]

    def _connect(self) -> sqlite3.Connection:
        folder = self.file.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise PermissionError(f"other users can change {folder}; remove it")
        database = sqlite3.connect(self.file, timeout=60)
        database.execute(f"PRAGMA page_size={_PAGE_BYTES}")
        database.execute("PRAGMA journal_mode=WAL")
        # Only a power failure can damage the database then. Waiting for the disk costs more.
        database.execute("PRAGMA synchronous=OFF")
        database.execute(f"PRAGMA max_page_count={MOST_BYTES // _PAGE_BYTES}")
        database.execute(_SCHEMA)
        return database

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            self._reads = False
            _warn(self.file, str(error))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_connections"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._connections = threading.local()


def _warn(file: Path, error: str) -> None:
    _say_once(
        logging.WARNING,
        f"{file}: {error}. Images without a side index decode slower, to the same pixels; free "
        "space on the disk, or remove the file",
    )


def _say_once(level: int, message: str) -> None:
    """Log a message that several threads may have at the same moment, once per process."""
    mine = object()
    # setdefault is atomic; functools.cache lets two threads call the function.
    if _said.setdefault(message, mine) is mine:
        log.log(level, "%s", message)


def _remove_unused(folder: Path) -> None:
    oldest = time.time() - _UNUSED_DAYS * 86400
    for file in folder.glob("*.sqlite"):
        with contextlib.suppress(FileNotFoundError):
            if file.stat().st_mtime < oldest:
                # A log that a killed job left would be replayed into a new database of this name.
                for part in (f"{file}-wal", f"{file}-shm", file):
                    Path(part).unlink(missing_ok=True)


def _key(path: str) -> int:
    """SQLite finds whole numbers faster than texts. A collision costs one image its index."""
    digest = blake2b(os.fsencode(path), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
