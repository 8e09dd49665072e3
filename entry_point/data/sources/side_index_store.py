"""Stores side indexes of images that are not packed, in an SQLite database.

Training on plain JPEG files makes an index of each in the first epoch, and starts decoding near the
crop from the second one on. A dataset folder has one database, shared by the ranks of a host and
later jobs. It is on a local disk, because SQLite's locks do not work across hosts.

`make dataset output_format=index` makes a database beforehand, beside the images. It is complete
under its name and never changes, so it is read without locks, even from a read-only disk.

Indexes only save time. The decoder ignores an index that does not fit its file, so no content can
change pixels. After an error, this process stops reading or writing indexes.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sqlite3
import threading
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor

from entry_point.data.errors import DataError, log_once
from entry_point.data.retries import with_retries
from entry_point.data.sources.file_bytes import opened
from entry_point.job.program import ReadError
from entry_point.job.whole_file import replacing

FOLDER_INDEX = "jpeg-index.sqlite"
"""The database beside the images."""
OLD_FOLDER_INDEX = "jpeg-index.safetensors"
"""The file of version 1, which is not read."""
HOST_FOLDER = Path(f"/var/tmp/jpeg-index-{os.getuid()}")
"""Folder of this host's databases, on a local disk; a home folder may be on a network, and /tmp in
memory."""
MOST_BYTES = 4 << 30
"""Largest database of this host: the indexes of about 3 million photographs of 100 KB."""
_PAGE_BYTES = 8192
_LARGE, _PAGE_BYTES_OF_LARGE = 1600, 1024
"""Average size of indexes from which small pages are used: large ones would be up to 40 % empty."""
_UNUSED_DAYS = 30
_PATIENCE_S = 60.0
"""How long a connection waits for others of this host."""
_MOST_VARIABLES = 500
"""Most variables in a query; old versions of SQLite allow 999."""

_TABLE = "CREATE TABLE side_indexes (path INTEGER PRIMARY KEY, content BLOB NOT NULL)"
_PATHS = "CREATE TABLE paths (hashes BLOB NOT NULL)"
"""A single row with all paths of `side_indexes`, for one read; only in databases beside images."""
_CONSEQUENCE = "images without a side index decode slower, to the same pixels"
_REMEDY_OF_HOST = "free space on the disk, or remove the file"
_REMEDY = '`make dataset ARGS="source=FOLDER output_format=index"` makes the indexes again'

_NONE = torch.empty(0, dtype=torch.uint8)

log = logging.getLogger(__name__)


class SideIndexStore:
    """The side indexes of the images below a folder, by their relative paths."""

    def __init__(self, file: Path, root: str | Path, *, grows: bool) -> None:
        """`grows`: the file is of this host, and decoding adds to it; otherwise it is read-only."""
        self.file, self.root, self.grows = file, root, grows
        self._reads = self._writes = True
        self._connections = threading.local()

    @classmethod
    def of_host(cls, root: str | Path) -> SideIndexStore:
        # Not 12 bytes, as in names of version 1's databases, which have other keys.
        name = blake2b(os.fsencode(Path(root).resolve()), digest_size=16).hexdigest()
        return cls(HOST_FOLDER / f"{name}.sqlite", root, grows=True)

    def count(self) -> int:
        """Returns the number of indexes on this host. Removes databases that were not used for a
        long time."""
        found = 0
        with self._reading(), contextlib.closing(self._connect()) as database:
            found = database.execute("SELECT COUNT(*) FROM side_indexes").fetchone()[0]
            os.utime(self.file)
            _remove_unused(self.file.parent)
        return found

    def key(self, path: str) -> int:
        """Returns the key of a path: a number, which SQLite finds faster than a text. In a
        collision, one image has no index."""
        digest = blake2b(os.fsencode(path.removeprefix(f"{self.root}/")), digest_size=8).digest()
        return int.from_bytes(digest, "little", signed=True)

    def warn_of_missing(self, keys: Sequence[int]) -> None:
        """Log the number of images that the file beside them lacks."""
        with self._reading():
            (content,) = self._database().execute("SELECT hashes FROM paths").fetchone()
            known = np.frombuffer(content, np.int64)
            if missing := int(np.isin(keys, known, invert=True).sum()):
                of = f"{missing} of {len(keys)} images"
                log.warning("%s lacks %s: %s; %s", self.file, of, _CONSEQUENCE, _REMEDY)

    def find(self, keys: Sequence[int]) -> list[Tensor]:
        """Returns the index of each image, uint8 (bytes,); empty if there is none."""
        found: dict[int, bytes] = {}
        if self._reads:
            with self._reading():
                for start in range(0, len(keys), _MOST_VARIABLES):
                    some = keys[start : start + _MOST_VARIABLES]
                    found.update(with_retries(self._query, some, name=lambda _: self.file))
        return [
            torch.frombuffer(bytearray(found[key]), dtype=torch.uint8) if found.get(key) else _NONE
            for key in keys
        ]

    def keep(self, keys: Sequence[int], indexes: Sequence[Tensor]) -> None:
        """Store the indexes that are not empty."""
        rows = [
            (key, index.numpy().tobytes())
            for key, index in zip(keys, indexes, strict=True)
            if len(index)
        ]
        if not rows or not self._reads or not self._writes:
            return
        try:
            with self._database() as transaction:
                transaction.executemany("INSERT OR REPLACE INTO side_indexes VALUES (?, ?)", rows)
        except (OSError, sqlite3.Error) as error:
            self._writes = False
            self._warn(error)
            return
        log_once(
            logging.INFO,
            "indexing images while they are decoded: later epochs decode faster. The side indexes "
            f"are kept in {self.file}",
        )

    def require_sound(self) -> None:
        """Raise DataError if the file beside the images is damaged, or OSError."""
        try:
            with contextlib.closing(self._connect()) as database:
                (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.Error as error:
            found = str(error)
        if found != "ok":
            raise DataError(f"{self.file} is damaged ({found}): copy it again or make it again")

    def _query(self, keys: list[int]) -> list[tuple[int, bytes]]:
        """Returns rows of these keys. Raises OSError if the disk fails, else sqlite3.Error."""
        marks = ",".join("?" * len(keys))
        columns = "path, CAST(content AS BLOB)"  # a forged file may have values of any type
        query = f"SELECT {columns} FROM side_indexes WHERE path IN ({marks})"
        try:
            return self._database().execute(query, keys).fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_IOERR:
                raise OSError(errno.EIO, str(error), str(self.file)) from error
            raise

    def _database(self) -> sqlite3.Connection:
        """Returns this thread's connection.

        A forked process must neither use nor close a connection of its parent: closing it would
        remove the log that others still write to.
        """
        by_process: dict[int, sqlite3.Connection]
        by_process = vars(self._connections).setdefault("by_process", {})
        if os.getpid() not in by_process:
            by_process[os.getpid()] = self._connect()
        return by_process[os.getpid()]

    def _connect(self) -> sqlite3.Connection:
        """Open the database. Raises OSError, DataError, ReadError and sqlite3.Error."""
        return self._connect_of_host() if self.grows else with_retries(self._connect_beside)

    def _connect_of_host(self) -> sqlite3.Connection:
        folder = self.file.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise PermissionError(f"other users can change {folder}; remove it")
        database = sqlite3.connect(self.file, timeout=_PATIENCE_S)
        database.execute(f"PRAGMA page_size={_PAGE_BYTES}")
        _use_write_ahead_log(database)
        # Only a power failure can damage the database then; waiting for the disk would cost more.
        database.execute("PRAGMA synchronous=OFF")
        database.execute(f"PRAGMA max_page_count={MOST_BYTES // _PAGE_BYTES}")
        database.execute(_TABLE.replace("TABLE", "TABLE IF NOT EXISTS"))
        return database

    def _connect_beside(self) -> sqlite3.Connection:
        with opened(self.file) as descriptor:  # SQLite's own error would lack the reason
            size = os.fstat(descriptor).st_size
        # Nothing writes to the file: it needs no locks, and no other file beside it.
        database = sqlite3.connect(f"{_uri(self.file)}?mode=ro&immutable=1", uri=True)
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        (page_bytes,) = database.execute("PRAGMA page_size").fetchone()
        if size != pages * page_bytes:
            raise DataError(f"{self.file} has {size} bytes instead of {pages * page_bytes}")
        # A forged file may have a view instead of the table, which may compute endlessly.
        tables = database.execute("SELECT sql FROM sqlite_master ORDER BY name").fetchall()
        if tables != [(_PATHS,), (_TABLE,)]:
            raise DataError(f"{self.file} holds no side indexes")
        return database

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (OSError, DataError, ReadError, sqlite3.Error, ValueError, TypeError) as error:
            self._reads = False
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        reason = str(error)
        if str(self.file) not in reason:
            reason = f"{self.file}: {reason}"
        remedy = _REMEDY_OF_HOST if self.grows else _REMEDY
        log_once(logging.WARNING, f"{reason}: {_CONSEQUENCE}; {remedy}")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_connections"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._connections = threading.local()


def write_folder_index(file: Path, root: str | Path, rows: Iterable[tuple[str, bytes]]) -> None:
    """Write the index of each image, perhaps empty, by its path below `root`.

    The file is complete or absent. Raises OSError, and errors of `rows`.
    """
    key, hashes, content_bytes = SideIndexStore(file, root, grows=False).key, array("q"), 0
    # The next run overwrites a file that a killed one left under this name.
    with (
        replacing(file, file.with_name(f".{file.name}.part")) as unfinished,
        _as_os_errors(file),
        contextlib.closing(sqlite3.connect("", uri=True)) as database,  # a temporary file
    ):
        database.execute(_TABLE)
        for path, content in rows:
            hashes.append(key(path))
            content_bytes += len(content)
            row = (hashes[-1], content)
            database.execute("INSERT OR REPLACE INTO side_indexes VALUES (?, ?)", row)
        database.commit()
        unfinished.unlink(missing_ok=True)
        database.execute("ATTACH ? AS made", (_uri(unfinished),))
        are_large = content_bytes > _LARGE * len(hashes)
        page_bytes = _PAGE_BYTES_OF_LARGE if are_large else _PAGE_BYTES
        database.execute(f"PRAGMA made.page_size={page_bytes}")
        database.execute("PRAGMA made.journal_mode=OFF")
        database.execute(_TABLE.replace("TABLE ", "TABLE made."))
        database.execute(_PATHS.replace("TABLE ", "TABLE made."))
        # Inserted in order, rows leave no gaps.
        database.execute("INSERT INTO made.side_indexes SELECT * FROM side_indexes ORDER BY path")
        database.execute("INSERT INTO made.paths VALUES (?)", (np.unique(hashes).tobytes(),))
        database.commit()


def _use_write_ahead_log(database: sqlite3.Connection) -> None:
    """Make writers append to a log, so that readers do not wait for them.

    SQLite's timeout has no effect here: if several connections open a new file, all but one may
    fail at once because it is locked.
    """
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            database.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() > end:
                raise
        time.sleep(0.01)


@contextlib.contextmanager
def _as_os_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        is_full = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL
        raise OSError(errno.ENOSPC if is_full else errno.EIO, str(error), str(file)) from error


def _uri(file: Path) -> str:
    return f"file:{quote(os.fsencode(file.absolute()))}"


def _remove_unused(folder: Path) -> None:
    oldest = time.time() - _UNUSED_DAYS * 86400
    for file in folder.glob("*.sqlite"):
        with contextlib.suppress(FileNotFoundError):
            if file.stat().st_mtime < oldest:
                # The log of a killed job would be replayed into a new database of the same name.
                for part in (f"{file}-wal", f"{file}-shm", file):
                    Path(part).unlink(missing_ok=True)
