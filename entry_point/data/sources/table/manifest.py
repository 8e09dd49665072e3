"""JPEG files that a table lists (data=manifest)."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from entry_point.config.data_config import DataConfig
from entry_point.contract.printable import printable
from entry_point.data.check_command import check_command
from entry_point.data.errors import DataError
from entry_point.data.sources.file_source import FileSource
from entry_point.data.sources.folder import JPEG_SUFFIXES
from entry_point.data.sources.table.missing_files import find_missing
from entry_point.data.sources.table.path_list import decoded
from entry_point.data.sources.table.read_table import UNUSED, Table, TableRequest, read_table
from entry_point.data.sources.table.table_files import is_table

log = logging.getLogger(__name__)

_EXAMPLES = 3
_opened: dict[str, Table] = {}
"""The last table, for the other split."""


class ManifestSource(FileSource):
    """The rows of one split, in the order of the table."""

    def __init__(self, table: Table, split: str) -> None:
        self._table, self._rows = table, table.rows(split)
        self.folder, labels = table.folder, table.labels
        super().__init__([], labels.values[self._rows], labels.names, labels.kind)

    def file(self, index: int) -> str:
        return f"{self.folder}/{self._table.paths[int(self._rows[index])]}"


def open_manifest(data: DataConfig, root: Path, split: str) -> ManifestSource:
    """The split of the table `root`. Raises DataError.

    A file that does not exist counts as a damaged image, so `data.on_error` says what it does.
    """
    images = Path(data.images) if data.images else None
    request = TableRequest(root, images, data.table, data.val_fraction, "data.table")
    status = root.stat() if root.is_file() else None
    stamp = repr((request, status and (status.st_mtime_ns, status.st_size), data.on_error))
    if stamp not in _opened:
        table = read_table(request)
        _check_files(table, root, data)
        _opened.clear()
        _opened[stamp] = table
    return ManifestSource(_opened[stamp], split)


def only_table(folder: Path) -> Path:
    """The only table in a channel. Raises DataError."""
    tables = sorted(filter(is_table, folder.iterdir()))
    if len(tables) == 1:
        return tables[0]
    found = ", ".join(printable(each.name) for each in tables[:5]) or "none"
    raise DataError(
        f"{folder} must hold one table, but holds {found}: name it with data.root={folder}/FILE"
    )


def _check_files(table: Table, file: Path, data: DataConfig) -> None:
    used = table.splits != UNUSED
    missing, checked = find_missing(table.folder, table.paths, used)
    if checked < used.sum():
        log.warning(
            "%s is slow: %d of %d files were looked up, the others are once they are read",
            table.folder,
            checked,
            used.sum(),
        )
    if len(missing):
        found = f"{len(missing)} of {checked} files are missing: {_examples(table, missing)}"
        check = check_command(replace(data, root=str(file)))
        if data.on_error == "raise":
            raise DataError(
                f"{found}; correct the table or data.images, or set data.on_error=skip; {check}"
            )
        log.warning("%s; %s", found, check)
    others = _not_jpeg(table, used)
    if len(others):
        log.warning(
            "%d files are not JPEG by their names: %s; `make dataset` converts other formats",
            len(others),
            _examples(table, others),
        )


def _not_jpeg(table: Table, used: NDArray[np.bool_]) -> NDArray[np.int64]:
    others: list[int] = []
    done = 0
    ends = [f"{suffix}\0".encode() for suffix in JPEG_SUFFIXES]
    for chunk in table.paths.chunks():
        text, count = chunk.lower(), chunk.count(b"\0")
        if sum(map(text.count, ends)) < count:
            names = enumerate(decoded(chunk), done)
            others += (row for row, name in names if not name.lower().endswith(JPEG_SUFFIXES))
        done += count
    rows = np.array(others, dtype=np.int64)
    return rows[used[rows]]


def _examples(table: Table, rows: NDArray[np.int64]) -> str:
    first = [f"{table.paths[row]} (row {row + 1})" for row in rows[:_EXAMPLES].tolist()]
    more = [f"{len(rows) - _EXAMPLES} more"] if len(rows) > _EXAMPLES else []
    return printable(", ".join([*first, *more]))
