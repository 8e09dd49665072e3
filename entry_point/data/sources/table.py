"""JPEG files that a table lists (data=manifest): each row is used or accounted for in the log."""

from __future__ import annotations

import logging
import os
import posixpath
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from entry_point.config.config_errors import near
from entry_point.config.data_config import DataConfig, PathsConfig, TableConfig
from entry_point.contract.printable import printable
from entry_point.data.errors import DataError
from entry_point.data.plan.path_split import VAL_FRACTION, chosen_for_val
from entry_point.data.sources.dataset_description import SPLITS
from entry_point.data.sources.file_source import FileSource, PathList
from entry_point.data.sources.folder import JPEG_SUFFIXES
from entry_point.data.sources.formats import is_table
from entry_point.data.sources.table_files import METADATA, BadRowError, TableFile, quoted
from entry_point.data.sources.table_labels import Labels, read_labels

log = logging.getLogger(__name__)

PATHS = ("path", "file", "file_name", "filename", "image", "image_path", "source-ref")
LABELS = ("label", "labels", "class")
SPLIT = "split"
TRAIN, VAL, UNUSED = 0, 1, -1
LISTING_SECONDS = 30.0
"""Listing a slow network mount may take hours: what is not checked by then is found when read."""
_SPLIT_NAMES = {"train": TRAIN, "training": TRAIN, "val": VAL, "valid": VAL, "validation": VAL}
_ODD_PATH = r"^\s*$|(^|/)(\.|/|$)|://|\x00"
_FEW = 8  # paths in a folder that are looked up without listing it
_AT_ONCE = 1 << 13
_EXAMPLES = 3
_JPEG = f"({'|'.join(map(re.escape, JPEG_SUFFIXES))})$"

_opened: dict[str, Table] = {}
"""The last table, for the other split."""


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
    def fraction(self) -> float:
        """Of a table without a column of splits."""
        return VAL_FRACTION if self.val_fraction is None else self.val_fraction


@dataclass(frozen=True)
class Table:
    """The rows of a table, in its order."""

    folder: str
    """Absolute path that `paths` start from."""
    paths: PathList
    labels: Labels
    """Those of rows that are not used mean nothing."""
    splits: NDArray[np.int8]
    """TRAIN, VAL or UNUSED."""

    @property
    def used(self) -> NDArray[np.int64]:
        """The rows that are used."""
        return np.flatnonzero(self.splits != UNUSED)

    def rows(self, split: str) -> NDArray[np.int64]:
        return np.flatnonzero(self.splits == SPLITS.index(split))


class ManifestSource(FileSource):
    """The rows of one split, in the order of the table."""

    def __init__(self, table: Table, split: str) -> None:
        self._table, self._rows = table, table.rows(split)
        self.folder, labels = table.folder, table.labels
        super().__init__([], labels.values[self._rows], labels.names, labels.kind)

    def file(self, index: int) -> str:
        return f"{self.folder}/{self._table.paths[int(self._rows[index])]}"


def open_manifest(data: DataConfig, root: Path, split: str) -> ManifestSource:
    """The split of the table `root`, or of the only table in the folder `root`. Raises DataError.

    A file that does not exist counts as a damaged image, see `data.max_bad_fraction`.
    """
    file = _only_table(root) if root.is_dir() else root
    images = Path(data.images) if data.images else None
    request = TableRequest(file, images, data.table, data.val_fraction, "data.table")
    status = file.stat() if file.is_file() else None
    stamp = repr((request, status and (status.st_mtime_ns, status.st_size), data.max_bad_fraction))
    if stamp not in _opened:
        table = read_table(request)
        _check_files(table, replace(data, root=str(file)))
        _opened.clear()
        _opened[stamp] = table
    return ManifestSource(_opened[stamp], split)


def _only_table(folder: Path) -> Path:
    tables = sorted(filter(is_table, folder.iterdir()))
    if len(tables) == 1:
        return tables[0]
    found = ", ".join(printable(each.name) for each in tables[:5]) or "none"
    raise DataError(
        f"{folder} must hold one table, but holds {found}: name it with data.root={folder}/FILE"
    )


def read_table(request: TableRequest) -> Table:
    """Raises DataError, which names the file and the row, for whatever cannot be used."""
    file, settings, key = request.file, request.settings, request.key
    table = TableFile(file)
    path = _path_column(file, table.names, settings, key)
    labels = list(settings.labels) or [_label_column(file, table.names, key)]
    split = settings.split or (SPLIT if SPLIT in table.names else None)
    columns = [path, *labels, *([split] if split else [])]
    _require_each(file, table.names, columns)
    if request.splits and split is not None and request.val_fraction is not None:
        setting = f"{key.removesuffix('table')}val_fraction={request.val_fraction}"
        raise DataError(f"{setting}: {file} has the column {quoted(split)}; remove one")
    frame, folder = table.read(columns), _folder(request.images, file)
    with _row_named(file):
        paths = _relative_paths(frame[path], folder, settings, key)
        names = None if split is None else _split_names(frame[split])
        splits = _by_hash(paths, request.fraction) if names is None else _by_name(names)
        found = _labels_of(frame.select(labels), splits != UNUSED, settings, key)
        repeated = _repeated_rows(paths, splits, found)
    unused = [] if names is None else names.filter(splits == UNUSED).value_counts(sort=True).rows()
    splits[repeated] = UNUSED
    result = Table(folder, _path_list(paths), found, splits)
    if request.splits:
        _check_splits(request, result, split, [name for name, _ in unused])
    how = f"by the column {quoted(split)}"
    if split is None:
        how = f"by a hash of the paths, val_fraction={request.fraction:g}"
    not_used = [f"{count} of split {quoted(name)}" for name, count in unused[:9]]
    not_used += [f"{len(repeated)} that repeat an earlier row"] if len(repeated) else []
    _log(request, result, how, not_used, is_one_column=len(labels) == 1)
    return result


def read_paths(
    file: Path, images: Path | None, settings: PathsConfig
) -> tuple[PathList, PathList, str]:
    """The paths of a table as it names them, and relative to the folder, which is the third.

    Raises DataError, which names the file and the row.
    """
    table, folder = TableFile(file), _folder(images, file)
    column = _path_column(file, table.names, settings, "table")
    _require_each(file, table.names, [column])
    names = table.read([column])[column]
    with _row_named(file):
        paths = _relative_paths(names, folder, settings, "table")
    return _path_list(names), _path_list(paths), folder


@contextmanager
def _row_named(file: Path) -> Iterator[None]:
    """Add the file, and the row's number, to what is wrong with the cells."""
    try:
        yield
    except BadRowError as error:
        raise DataError(f"{file}, row {error.row + 1}: {error}") from error
    except DataError as error:
        raise DataError(f"{file}: {error}") from error


def _folder(images: Path | None, file: Path) -> str:
    return os.path.normpath((images or file.parent).absolute())


def _path_column(file: Path, names: Sequence[str], settings: PathsConfig, key: str) -> str:
    if settings.path is not None:
        return settings.path
    return _usual(file, names, PATHS, f"the images' paths: set {key}.path")


def _label_column(file: Path, names: Sequence[str], key: str) -> str:
    described = [name for name in names if name + METADATA in names]
    if not set(LABELS) & set(names) and len(described) == 1:
        return described[0]
    return _usual(file, names, LABELS, f"labels: set {key}.labels")


def _usual(file: Path, names: Sequence[str], usual: Sequence[str], what: str) -> str:
    found = next((name for name in usual if name in names), None)
    if found is None:
        usually = f"which is usually called {', '.join(usual)}"
        raise DataError(f"{file} has no column of {what}=COLUMN, {usually}{_has(names)}")
    return found


def _require_each(file: Path, names: Sequence[str], columns: Sequence[str]) -> None:
    """Raise DataError for a column that is missing, or that is there or chosen twice."""
    for name in columns:
        if name not in names:
            raise DataError(f"{file} has no column {quoted(name)}{near(name, names)}{_has(names)}")
        if list(names).count(name) > 1:
            raise DataError(f"{file} has two columns {quoted(name)}: rename one")
        if columns.count(name) > 1:
            raise DataError(f"{file}: the column {quoted(name)} cannot hold two things")


def _has(names: Sequence[str]) -> str:
    return f"; it has {', '.join(map(quoted, names[:20])) or 'no columns'}"


def _relative_paths(column: pl.Series, folder: str, settings: PathsConfig, key: str) -> pl.Series:
    """The paths relative to the folder. Raises BadRowError for one that leads out of it."""
    if column.dtype not in (pl.String, pl.Categorical, pl.Enum):
        raise BadRowError(0, f"the path is {quoted(column[0])}: must be text")
    given = column.cast(pl.String).fill_null("")
    if settings.prefix is not None:
        given = given.str.strip_prefix(settings.prefix)
    paths = given.str.strip_prefix(f"{folder.rstrip('/')}/")
    odd = paths.str.contains(_ODD_PATH).arg_true()
    if odd.is_empty():
        return paths
    return paths.scatter(odd, [_relative(row, given[row], folder, key) for row in odd])


def _relative(row: int, path: str, folder: str, key: str) -> str:
    if "://" in path:
        raise BadRowError(
            row,
            f"the path {quoted(path)} is no file: set {key}.prefix to the part of it that the "
            f"folder {folder} stands for",
        )
    if "\0" in path:
        raise BadRowError(row, f"the path {quoted(path)} holds a NUL character")
    if not path.strip():
        raise BadRowError(row, "the path is empty")
    found = posixpath.normpath(posixpath.join(folder, path))
    if not found.startswith(f"{folder.rstrip('/')}/"):
        images = "data.images" if key.startswith("data.") else "images"
        raise BadRowError(
            row,
            f"the path {quoted(path)} leads out of the folder {folder}: set {images} to a folder "
            "that holds all images",
        )
    return found[len(folder.rstrip("/")) + 1 :]


def _path_list(paths: pl.Series) -> PathList:
    return PathList.of(["\0".join([*part, ""]).encode() for part in _parts(paths)])


def _parts(paths: pl.Series) -> Iterator[list[str]]:
    """The paths, a few thousand at a time: as Python objects, all would take much memory."""
    for start in range(0, len(paths), _AT_ONCE):
        yield paths.slice(start, _AT_ONCE).to_list()


def _split_names(column: pl.Series) -> pl.Series:
    return column.cast(pl.String).fill_null("").str.strip_chars().str.to_lowercase()


def _by_name(names: pl.Series) -> NDArray[np.int8]:
    splits = names.replace_strict(_SPLIT_NAMES, default=UNUSED, return_dtype=pl.Int8)
    return splits.to_numpy(writable=True)


def _by_hash(paths: pl.Series, fraction: float) -> NDArray[np.int8]:
    parts = [chosen_for_val(part, fraction) for part in _parts(paths)]
    return np.where(np.concatenate(parts), VAL, TRAIN).astype(np.int8)


def _labels_of(
    frame: pl.DataFrame, used: NDArray[np.bool_], settings: TableConfig, key: str
) -> Labels:
    """The labels of all rows, from the cells of those that are used. Raises BadRowError."""
    if used.all():
        return read_labels(frame.get_columns(), settings, key)
    try:
        labels = read_labels(frame.filter(used).get_columns(), settings, key)
    except BadRowError as error:
        raise BadRowError(int(np.flatnonzero(used)[error.row]), str(error)) from error
    values = np.zeros((len(frame), *labels.values.shape[1:]), labels.values.dtype)
    values[used] = labels.values
    return replace(labels, values=values)


def _repeated_rows(paths: pl.Series, splits: NDArray[np.int8], labels: Labels) -> NDArray[np.int64]:
    """Rows that repeat an earlier one, ascending, of those that are used.

    Raises BadRowError if the same image has different labels or is in different splits.
    """
    frame = pl.DataFrame({"path": paths}).with_row_index("row")
    frame = frame.filter(pl.col("path").is_duplicated())
    frame = frame.with_columns(first=pl.col("row").first().over("path"))
    frame = frame.filter(pl.col("row") != pl.col("first"))
    rows, firsts = (frame[name].cast(pl.Int64).to_numpy() for name in ("row", "first"))
    others = labels.values[rows] != labels.values[firsts]
    others = others if others.ndim == 1 else others.any(axis=1)
    for wrong, reason in (
        (splits[rows] != splits[firsts], "is in another split in row {}: remove one"),
        (others, "has another label than in row {}: keep one; a list of labels goes into one cell"),
    ):
        if wrong.any():
            row, first = int(rows[wrong.argmax()]), int(firsts[wrong.argmax()])
            raise BadRowError(row, f"{quoted(paths[row])} {reason.format(first + 1)}")
    return rows[splits[rows] != UNUSED]


def _check_splits(
    request: TableRequest, table: Table, split: str | None, others: Sequence[str]
) -> None:
    """Raise DataError if training or validation lacks rows or labels."""
    file, labels = request.file, table.labels
    train, val = table.splits == TRAIN, table.splits == VAL
    for name, rows in zip(SPLITS, (train, val), strict=True):
        if not rows.any():
            holds = f"; its column of splits holds {', '.join(map(quoted, others[:5]))}"
            raise DataError(
                f"{file} has no row for {name}{holds if others else ''}: both train and val need "
                "some"
            )
    if labels.kind == "numbers":
        return
    if not labels.names:
        raise DataError(f"{file}: no row has a label")
    if labels.kind == "class" and len(labels.names) == 1:
        only = quoted(labels.names[0])
        raise DataError(f"{file}: all rows have the label {only}; training needs two or more")
    unknown = np.flatnonzero(labels.has(val) & ~labels.has(train)).tolist()
    if not unknown:
        return
    examples = ", ".join(quoted(labels.names[number]) for number in unknown[:5])
    found = f"{file}: {len(unknown)} labels are in val but not in train: {examples}"
    if split is not None:
        raise DataError(f"{found}: move some of their rows to train, or remove them")
    log.warning("%s; training cannot learn them", found)


def _log(
    request: TableRequest, table: Table, how: str, not_used: list[str], *, is_one_column: bool
) -> None:
    """One line that accounts for every row."""
    file, labels, splits = printable(str(request.file)), table.labels, table.splits
    if labels.kind == "labels" and is_one_column and (labels.values.sum(axis=1) <= 1).all():
        log.warning(
            "%s: no row has several labels; %s.separator=%s separates them in a cell",
            *(file, request.key, request.settings.separator),
        )
    log.info(
        "%s: %d rows: %d to train on, %d to validate (%s), %s: %d%s",
        *(file, len(splits), int((splits == TRAIN).sum()), int((splits == VAL).sum()), how),
        {"class": "classes", "labels": "labels", "numbers": "numbers"}[labels.kind],
        len(labels.names),
        f"; not used: {', '.join(not_used)}" if not_used else "",
    )


def _check_files(table: Table, data: DataConfig) -> None:
    """Raise DataError for missing files, or warn if damaged images may be skipped."""
    used = pl.Series(table.used)
    text = table.paths.text[:-1].tobytes().decode()
    paths = pl.Series([text]).str.split("\0").explode().gather(used)
    missing, checked = find_missing(table.folder, paths)
    if checked < len(used):
        log.warning(
            "%s is slow: %d of %d files were looked up, the others are once they are read",
            *(table.folder, checked, len(used)),
        )
    if missing:
        found = f"{len(missing)} of {checked} files are missing: {_examples(used, paths, missing)}"
        check = data.check_command()
        if not data.max_bad_fraction:
            raise DataError(
                f"{found}; correct the table or data.images, or set data.max_bad_fraction=0.01; "
                f"{check}"
            )
        log.warning("%s; %s", found, check)
    others = (~paths.str.to_lowercase().str.contains(_JPEG)).arg_true().to_list()
    if others:
        log.warning(
            "%d files are not JPEG by their names: %s; `make dataset` converts other formats",
            *(len(others), _examples(used, paths, others)),
        )


def find_missing(
    folder: str, paths: pl.Series, seconds: float = LISTING_SECONDS
) -> tuple[list[int], int]:
    """The places of paths without a file, ascending, and how many were checked in time.

    Lists each folder once.
    """
    frame = pl.DataFrame({"path": paths}).with_row_index("place")
    frame = frame.with_columns(parent=pl.col("path").str.extract("(?s)^(.*/)").fill_null(""))
    parents = frame.group_by("parent", maintain_order=True).agg("place", "path")
    missing, checked, end = list[int](), 0, time.monotonic() + seconds
    for number, parent in enumerate(parents["parent"]):
        if time.monotonic() > end:
            break
        of_parent = parents["path"][number].to_list()
        if len(of_parent) <= _FEW:
            there = {path for path in of_parent if Path(folder, path).exists()}
        else:
            there = {f"{parent}{name}" for name in _listed(f"{folder}/{parent}")}
        if not there.issuperset(of_parent):
            places = zip(parents["place"][number], of_parent, strict=True)
            missing += [place for place, path in places if path not in there]
        checked += len(of_parent)
    return sorted(missing), checked


def _listed(folder: str) -> list[str]:
    """The names in a folder; none if it does not exist."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _examples(rows: pl.Series, paths: pl.Series, places: Sequence[int]) -> str:
    first = [f"{paths[place]} (row {rows[place] + 1})" for place in places[:_EXAMPLES]]
    more = [f"{len(places) - _EXAMPLES} more"] if len(places) > _EXAMPLES else []
    return printable(", ".join([*first, *more]))
