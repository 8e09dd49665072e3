"""A whole table: paths, labels and splits as arrays, every row accounted for."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entry_point.config.data_config import TableConfig
from entry_point.contract.printable import printable
from entry_point.data.errors import DataError
from entry_point.data.no_collection import no_collection
from entry_point.data.plan.path_split import VAL_FRACTION, chosen_by_checksum, path_checksums
from entry_point.data.sources.dataset_description import SPLITS
from entry_point.data.sources.table.bad_row import BadRowError, quoted
from entry_point.data.sources.table.choose_columns import Chosen, choose_columns
from entry_point.data.sources.table.columns import Columns, require_few_rows
from entry_point.data.sources.table.duplicate_rows import repeated_rows
from entry_point.data.sources.table.label_encoder import Encoder, Labels, encoder_for
from entry_point.data.sources.table.path_list import PathList, encoded, relative_paths
from entry_point.data.sources.table.table_files import open_table_file

log = logging.getLogger(__name__)

TRAIN, VAL, UNUSED = 0, 1, -1
_SPLIT_NAMES = {"train": TRAIN, "training": TRAIN}
_SPLIT_NAMES |= {"val": VAL, "valid": VAL, "validation": VAL}


@dataclass(frozen=True)
class TableRequest:
    """What to read, and how."""

    file: Path
    images: Path | None
    """Folder of the images; None: the table's."""
    settings: TableConfig
    val_fraction: float | None
    key: str
    """Group of the settings in messages: `data.table`, or `table` when packing."""
    splits: bool = True
    """Whether both splits are needed; else all rows may be of one."""

    @property
    def folder(self) -> str:
        return os.path.normpath((self.images or self.file.parent).absolute())

    @property
    def fraction(self) -> float:
        """Of a table without a column of splits."""
        return VAL_FRACTION if self.val_fraction is None else self.val_fraction

    @property
    def group(self) -> str:
        """Of `val_fraction`."""
        return self.key.removesuffix("table")


@dataclass(frozen=True)
class Table:
    """The rows of a table, in its order."""

    folder: str
    """Absolute path that `paths` start from."""
    paths: PathList
    labels: Labels
    splits: NDArray[np.int8]
    """TRAIN, VAL or UNUSED."""

    def rows(self, split: str) -> NDArray[np.int64]:
        return np.flatnonzero(self.splits == SPLITS.index(split))


def read_table(request: TableRequest) -> Table:
    """Raises DataError, which names the file and the row, for whatever cannot be used."""
    file = request.file
    table = open_table_file(file)
    chosen = choose_columns(file, table.names, request.settings, request.key)
    if request.splits:
        _check_fraction(request, chosen)
    reading = _Reading(request, chosen)
    try:
        with no_collection():  # it would visit all of torch's objects every few thousand cells
            for columns in table.chunks(chosen.all):
                reading.add(columns)
                require_few_rows(file, reading.rows)
            if not reading.rows:
                raise DataError(f"{file} holds no rows, only a header")
            return reading.finish()
    except BadRowError as error:
        raise DataError(f"{file}, row {error.row + 1}: {error}") from error


def _check_fraction(request: TableRequest, chosen: Chosen) -> None:
    key = f"{request.group}val_fraction"
    if chosen.split is not None and request.val_fraction is not None:
        raise DataError(
            f"{key}={request.val_fraction}: {request.file} has the column "
            f"{quoted(chosen.split)}; remove one"
        )


@dataclass
class _Reading:
    """The rows read so far."""

    request: TableRequest
    chosen: Chosen
    rows: int = 0
    _encoder: Encoder | None = None
    _paths: list[bytes] = field(default_factory=list)
    _checksums: list[NDArray[np.uint32]] = field(default_factory=list)
    _splits: list[NDArray[np.int8]] = field(default_factory=list)
    _unused: Counter[str] = field(default_factory=Counter)

    def add(self, columns: Columns) -> None:
        """Add a chunk. Raises BadRowError, with the row's number in the table."""
        try:
            self._add(columns)
        except BadRowError as error:
            raise BadRowError(self.rows + error.row, str(error)) from error

    def _add(self, columns: Columns) -> None:
        if not (count := len(columns[0])):
            return
        request, labels = self.request, columns[1 : 1 + len(self.chosen.labels)]
        paths = relative_paths(columns[0], request.folder, request.settings.prefix, request.key)
        if self._encoder is None:
            names = self.chosen.labels
            self._encoder = encoder_for(names, labels, request.settings, request.key)
        self._encoder.add(labels)
        self._paths.append(encoded(paths))
        self._checksums.append(checksums := path_checksums(paths))
        if self.chosen.split is not None:
            self._splits.append(self._by_column(columns[-1]))
        else:
            in_val = chosen_by_checksum(checksums, request.fraction)
            self._splits.append(in_val.astype(np.int8))
        self.rows += count

    def _by_column(self, column: Sequence[Any]) -> NDArray[np.int8]:
        names = [str(cell).strip().lower() for cell in column]
        splits = np.array([_SPLIT_NAMES.get(name, UNUSED) for name in names], dtype=np.int8)
        self._unused.update(name for name in names if name not in _SPLIT_NAMES)
        return splits

    def finish(self) -> Table:
        """Raises DataError and BadRowError."""
        assert self._encoder is not None
        paths, labels = PathList.of(self._paths), self._encoder.labels()
        splits = np.concatenate(self._splits)
        repeated = repeated_rows(paths, np.concatenate(self._checksums), labels, splits)
        splits[repeated] = UNUSED
        labels = labels.used_by(splits != UNUSED)
        if self.request.splits:
            self._check_splits(splits, labels)
        self._log(splits, labels, len(repeated))
        return Table(self.request.folder, paths, labels, splits)

    def _check_splits(self, splits: NDArray[np.int8], labels: Labels) -> None:
        file, train, val = self.request.file, splits == TRAIN, splits == VAL
        for name, rows in zip(SPLITS, (train, val), strict=True):
            if not rows.any():
                others = ", ".join(quoted(name) for name, _ in self._unused.most_common(5))
                found = f"; its column of splits holds {others}" if others else ""
                raise DataError(
                    f"{file} has no row for {name}{found}: both train and val need some"
                )
        if labels.kind == "numbers":
            return
        if labels.kind == "class" and len(labels.names) == 1:
            only = quoted(labels.names[0])
            raise DataError(f"{file}: all rows have the label {only}; training needs two or more")
        self._check_unknown(train, val, labels)

    def _check_unknown(
        self, train: NDArray[np.bool_], val: NDArray[np.bool_], labels: Labels
    ) -> None:
        """Training never sees a label that only val has."""
        unknown = np.flatnonzero(labels.has(val) & ~labels.has(train)).tolist()
        if not unknown:
            return
        names = ", ".join(quoted(labels.names[number]) for number in unknown[:5])
        found = f"{self.request.file}: {len(unknown)} labels are in val but not in train: {names}"
        if self.chosen.split is not None:
            raise DataError(f"{found}: move some of their rows to train, or remove them")
        log.warning("%s; training cannot learn them", found)

    def _log(self, splits: NDArray[np.int8], labels: Labels, repeated: int) -> None:
        how = f"by the column {quoted(self.chosen.split)}"
        if self.chosen.split is None:
            how = f"by a hash of the paths, val_fraction={self.request.fraction:g}"
        if labels.kind == "labels" and len(self.chosen.labels) == 1 and _no_row_has_two(labels):
            separator = self.request.settings.separator
            log.warning(
                "%s: no row has several labels; %s.separator=%s separates them in a cell",
                printable(str(self.request.file)),
                *(self.request.key, separator),
            )
        unused = [f"{count} of split {quoted(name)}" for name, count in self._unused.most_common(9)]
        unused += [f"{repeated} that repeat an earlier row"] if repeated else []
        what = {"class": "classes", "labels": "labels", "numbers": "numbers"}[labels.kind]
        log.info(
            "%s: %d rows: %d to train on, %d to validate (%s), %s: %d%s",
            printable(str(self.request.file)),
            self.rows,
            int((splits == TRAIN).sum()),
            int((splits == VAL).sum()),
            how,
            what,
            len(labels.names),
            f"; not used: {', '.join(unused)}" if unused else "",
        )


def _no_row_has_two(labels: Labels) -> bool:
    return bool((labels.values.sum(axis=1) <= 1).all())
