"""Images and labels that a table lists (data=manifest): CSV, TSV, Parquet or JSON lines.

Each row is used or accounted for in the log. A wrong one stops the job and is named by its number,
which counts from 1, without the header and blank lines.
"""

from __future__ import annotations

import logging
import os
import posixpath
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from entry_point.config.config_errors import near
from entry_point.config.data_config import DataConfig, PathsConfig, TableConfig
from entry_point.contract.printable import printable
from entry_point.data.errors import DataError
from entry_point.data.sources.dataset_description import CLASS_NAME, SPLITS, Kind, is_class_name
from entry_point.data.sources.folder import JPEG_SUFFIXES, VAL_FRACTION, chosen_for_val
from entry_point.data.sources.formats import is_table
from entry_point.data.sources.source import FileSource, PathList
from entry_point.data.sources.table_files import METADATA, column_names, quoted, read_columns

log = logging.getLogger(__name__)

PATHS = ("path", "file", "file_name", "filename", "image", "image_path", "source-ref")
LABELS = ("label", "labels", "class")
SPLIT = "split"
MOST_VALUES = 1 << 30
"""Rows times labels (or numbers) of a table. Training takes them as float32, 4 GB at most."""
LISTING_SECONDS = 30.0
"""Listing a slow network mount may take hours: what is not checked by then is found when read."""
_IS_VAL = {"train": False, "training": False, "val": True, "valid": True, "validation": True}
_ODD_PATH = r"^\s*$|(^|/)(\.|/|$)|://|\x00"
_WHOLE = r"^[+-]?\d{1,18}$"
_JPEG = f"({'|'.join(map(re.escape, JPEG_SUFFIXES))})$"
_LONGEST_NAME = 255
_EXAMPLES = 3
_ADD = "add one, or remove the row"

_opened: dict[str, Table] = {}
"""The last table, for the other split."""


@dataclass(frozen=True)
class Table:
    """The rows that are used, in their order."""

    folder: str
    """Absolute path that `paths` start from."""
    rows: NDArray[np.uint32]
    """Their numbers in the file."""
    paths: PathList
    is_val: NDArray[np.bool_]
    labels: Labels

    def places(self, split: str) -> NDArray[np.int64]:
        """Where the rows of a split are among those that are used."""
        return np.flatnonzero(self.is_val == (split == "val"))


@dataclass(frozen=True)
class Labels:
    """The labels of rows."""

    kind: Kind
    names: list[str]
    """Classes, labels, or targets."""
    values: NDArray[Any]
    """int32 (N,) of kind `class`; uint8 (N, names) of kind `labels`; else float32 (N, names)."""

    def has(self, rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which names occur in `rows`; not for numbers."""
        if self.kind == "labels":
            return np.asarray(self.values[rows].any(axis=0))
        return np.bincount(self.values[rows], minlength=len(self.names)) > 0


class ManifestSource(FileSource):
    """The rows of one split, in the order of the table."""

    def __init__(self, table: Table, split: str) -> None:
        self._table, self._places = table, table.places(split)
        self.folder, labels = table.folder, table.labels
        super().__init__([], labels.values[self._places], labels.names, labels.kind)

    def file(self, index: int) -> str:
        return f"{self.folder}/{self._table.paths[int(self._places[index])]}"


def open_manifest(data: DataConfig, root: Path, split: str) -> ManifestSource:
    """The split of the table `root`, or of the only table in the folder `root`. Raises DataError.

    A file that does not exist counts as a damaged image, see `data.max_bad_fraction`.
    """
    file = _only_table(root) if root.is_dir() else root
    changed = file.stat().st_mtime_ns if file.is_file() else None
    stamp = repr((file, changed, data))
    if stamp not in _opened:
        images = Path(data.images) if data.images else None
        table = read_table(file, images, data.table, data.val_fraction, "data.table")
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


def read_table(
    file: Path, images: Path | None, settings: TableConfig, val_fraction: float | None, key: str
) -> Table:
    """Raises DataError, which names the file and the row, for whatever cannot be used.

    Args:
        images: Folder of the images; None: the table's.
        val_fraction: Share of the rows that is `val`; not for a table with a column of splits.
        key: Group of the settings in messages: `data.table`, or `table` when packing.
    """
    names, folder = column_names(file), _folder(images, file)
    path = settings.path or _usual(file, names, PATHS, f"the images' paths: set {key}.path")
    labels = settings.labels or [_usual(file, names, LABELS, f"labels: set {key}.labels")]
    split = settings.split or (SPLIT if SPLIT in names else None)
    if split is not None and val_fraction is not None:
        setting = f"{key.removesuffix('table')}val_fraction={val_fraction}"
        raise DataError(f"{setting}: {file} has the column {quoted(split)}; remove one")
    frame = _read(file, names, [path, *([split] if split else [])], labels)
    rows = Rows(file, pl.arange(1, len(frame) + 1, dtype=pl.UInt32, eager=True))
    paths = _relative_paths(rows, frame[path], folder, settings, key)
    if split is None:
        fraction = VAL_FRACTION if val_fraction is None else val_fraction
        is_val, others = _by_hash(paths, fraction), list[str]()
        how = f"by a hash of the paths, val_fraction={fraction:g}"
    else:
        is_val, others = _by_column(frame[split])
        how = f"by the column {quoted(split)}"
    used = is_val.is_not_null()
    rows, paths, is_val = (
        Rows(file, rows.numbers.filter(used)),
        paths.filter(used),
        is_val.drop_nulls(),
    )
    columns = frame.filter(used).select(labels).get_columns()
    found = _read_labels(rows, columns, settings, key)
    kept = _first_of_each(rows, paths, is_val, found)
    others += [f"{len(kept) - kept.sum()} that repeat an earlier row"] if not kept.all() else []
    table = Table(
        folder,
        rows.numbers.filter(kept).to_numpy(),
        _path_list(paths.filter(kept)),
        is_val.filter(kept).to_numpy(),
        replace(found, values=found.values[kept.to_numpy()]),
    )
    _check_splits(file, table, others, by_column=split is not None)
    name, unused = printable(str(file)), f"; not used: {', '.join(others)}" if others else ""
    if found.kind == "labels" and len(labels) == 1 and (found.values.sum(axis=1) <= 1).all():
        line = "%s: no row has several labels; %s.separator=%s separates them in a cell"
        log.warning(line, name, key, settings.separator)
    kind = {"class": "classes", "labels": "labels", "numbers": "numbers"}[found.kind]
    counts = len(frame), *(len(table.places(each)) for each in SPLITS)
    line = "%s: %d rows: %d to train on, %d to validate (%s), %s: %d%s"
    log.info(line, name, *counts, how, kind, len(found.names), unused)
    return table


def read_paths(
    file: Path, images: Path | None, settings: PathsConfig
) -> tuple[PathList, PathList, str]:
    """The paths of a table as it names them, and relative to the folder, which is the third.

    Raises DataError, which names the file and the row.
    """
    names, folder = column_names(file), _folder(images, file)
    column = settings.path or _usual(file, names, PATHS, "the images' paths: set table.path")
    given = _read(file, names, [column], [])[column]
    rows = Rows(file, pl.arange(1, len(given) + 1, eager=True))
    paths = _relative_paths(rows, given, folder, settings, "table")
    return _path_list(given), _path_list(paths), folder


class Rows(NamedTuple):
    """Rows of a table, for messages."""

    file: Path
    numbers: pl.Series

    def error(self, place: int, reason: str) -> DataError:
        return DataError(f"{self.file}, row {self.numbers[place]}: {reason}")


def _first(wrong: pl.Series) -> int | None:
    """The first place that is true; None if there is none."""
    return wrong.arg_max() if wrong.any() else None


# Columns


def _usual(file: Path, names: list[str], usual: Sequence[str], what: str) -> str:
    """The column of `what` by its usual name. Raises DataError if there is none."""
    described = [name for name in names if usual is LABELS and name + METADATA in names]
    found = [name for name in usual if name in names] or (described if len(described) == 1 else [])
    if not found:
        usually = f"which is usually called {', '.join(usual)}"
        raise DataError(f"{file} has no column of {what}=COLUMN, {usually}{_has(names)}")
    return found[0]


def _read(file: Path, names: list[str], texts: list[str], labels: Sequence[str]) -> pl.DataFrame:
    """Raises DataError for a column that is missing, or that is there or chosen twice."""
    columns = [*texts, *labels]
    for name in columns:
        if name not in names:
            raise DataError(f"{file} has no column {quoted(name)}{near(name, names)}{_has(names)}")
        if names.count(name) > 1:
            raise DataError(f"{file} has two columns {quoted(name)}: rename one")
        if columns.count(name) > 1:
            raise DataError(f"{file}: the column {quoted(name)} cannot hold two things")
    frame = read_columns(file, names, columns)
    for name in texts:
        if frame[name].dtype != pl.String:
            raise DataError(f"{file}: the column {quoted(name)} holds lists: must be text")
    return frame


def _has(names: list[str]) -> str:
    return f"; it has {', '.join(map(quoted, names[:20])) or 'no columns'}"


# Paths


def _folder(images: Path | None, file: Path) -> str:
    return os.path.normpath((images or file.parent).absolute())


def _relative_paths(
    rows: Rows, column: pl.Series, folder: str, settings: PathsConfig, key: str
) -> pl.Series:
    """The paths relative to the folder. Raises DataError for one that leads out of it."""
    given = column.fill_null("")
    if settings.prefix is not None:
        given = given.str.strip_prefix(settings.prefix)
    start = f"{folder.rstrip('/')}/"
    paths = given.str.strip_prefix(start)
    odd, found = paths.str.contains(_ODD_PATH).arg_true(), []
    for place in odd.to_list():
        path, shown = given[place], f"the path {quoted(given[place])}"
        if "://" in path:
            must = "set {key}.prefix to the part of it that the folder {folder} stands for"
            raise rows.error(place, f"{shown} is no file: {must.format(key=key, folder=folder)}")
        if not path.strip() or "\0" in path:
            raise rows.error(place, f"{shown} is empty or holds a NUL character")
        found.append(posixpath.normpath(posixpath.join(folder, path)).removeprefix(start))
        if found[-1].startswith("/"):
            images = "data.images" if key.startswith("data.") else "images"
            must = f"set {images} to a folder that holds all images"
            raise rows.error(place, f"{shown} leads out of the folder {folder}: {must}")
    return paths.scatter(odd, found) if found else paths


def _path_list(paths: pl.Series) -> PathList:
    return PathList.of([paths.str.join("\0").item().encode() + b"\0"])


def _first_of_each(rows: Rows, paths: pl.Series, is_val: pl.Series, labels: Labels) -> pl.Series:
    """Which rows do not repeat an earlier one.

    Raises DataError if the same image has different labels or is in different splits.
    """
    is_first = paths.is_first_distinct()
    if is_first.all():
        return is_first
    frame = pl.DataFrame({"path": paths}).with_row_index("row")
    frame = frame.with_columns(first=pl.col("row").first().over("path")).filter(~is_first)
    again, first = (frame[name].to_numpy() for name in ("row", "first"))
    others = (labels.values[again] != labels.values[first]).reshape(len(again), -1).any(axis=1)
    for wrong, reason in (
        (
            is_val.to_numpy()[again] != is_val.to_numpy()[first],
            "is in another split in row {}: remove one",
        ),
        (others, "has another label than in row {}: keep one; a list of labels goes into one cell"),
    ):
        if wrong.any():
            row, before = int(again[wrong.argmax()]), int(first[wrong.argmax()])
            reason = reason.format(rows.numbers[before])
            raise rows.error(row, f"{quoted(paths[row])} {reason}")
    return is_first


# Labels


def _read_labels(rows: Rows, columns: list[pl.Series], settings: TableConfig, key: str) -> Labels:
    """The labels of columns of text, or of one of lists of text. Raises DataError."""
    if columns[0].is_empty():
        return Labels("class", [], np.zeros(0, np.int32))
    for column in columns:
        if (place := _first(column.is_null())) is not None:
            raise rows.error(place, f"has no {quoted(column.name)}: {_ADD}")
    column, kind = columns[0], settings.kind
    if kind is None:
        kind = "numbers" if len(columns) > 1 else _guess(column, settings.separator)
    if kind == "numbers" or len(columns) > 1:
        return _numbers(rows, columns, kind, key)
    frame = pl.DataFrame({"place": np.arange(len(column)), "item": column})
    if isinstance(column.dtype, pl.List):
        if kind == "class" and (place := _first(column.list.len() != 1)) is not None:
            shown = quoted(column[place].to_list())
            raise rows.error(place, f"the label {shown} is not one class: set {key}.kind=labels")
        frame = frame.filter(column.list.len() > 0).explode("item")
    elif kind == "labels":
        frame = frame.with_columns(pl.col("item").str.split(settings.separator)).explode("item")
        frame = frame.filter(pl.col("item").str.strip_chars() != "")
    places, items = frame["place"], frame["item"].fill_null("").str.strip_chars()
    names = items.unique(maintain_order=True).to_list()  # the first wrong one is named
    for name in names:
        if reason := _refuse_name(name, is_guess=settings.kind is None):
            raise rows.error(places[_first(items == name) or 0], reason)
    is_whole = all(re.match(_WHOLE, name) for name in names)
    names.sort(key=(lambda name: (int(name), name)) if is_whole else None)
    numbers = items.cast(pl.Enum(names)).to_physical().cast(pl.Int32).to_numpy()
    if kind == "class":
        return Labels(kind, names, numbers)
    _require_few(rows.file, len(column), len(names), "different labels")
    values = np.zeros((len(column), len(names)), np.uint8)
    values[places.to_numpy(), numbers] = 1
    return Labels(kind, names, values)


def _guess(column: pl.Series, separator: str) -> Kind:
    """The kind of labels that a column looks like; see TableConfig.kind."""
    is_list = isinstance(column.dtype, pl.List)
    texts = (column.explode() if is_list else column).unique().drop_nulls().str.strip_chars()
    is_number = texts.cast(pl.Float64, strict=False).is_finite().fill_null(False)
    if (is_number & ~texts.str.contains(_WHOLE)).any():
        return "numbers"
    if is_list or column.name == "labels" or texts.str.contains(separator, literal=True).any():
        return "labels"
    return "class"


def _refuse_name(name: str, *, is_guess: bool) -> str:
    """Why a label cannot be one; empty if it can."""
    if not name:
        return f"the label is empty: {_ADD}"
    if is_guess and name.lower() == "nan":
        return f"the label is NaN: {_ADD}"
    if len(name) > _LONGEST_NAME:
        return f"the label {quoted(name)} has more than {_LONGEST_NAME} characters"
    return "" if is_class_name(name) else f"the label {quoted(name)}: {CLASS_NAME}"


def _numbers(rows: Rows, columns: list[pl.Series], kind: Kind, key: str) -> Labels:
    """One or more numbers per row; those of kind `labels` say which labels it has."""
    names = [column.name for column in columns]
    if len(columns) == 1 and isinstance(columns[0].dtype, pl.List):
        lengths = columns[0].list.len()
        if (place := _first(lengths != lengths[0])) is not None:
            cell = quoted(columns[0][place].to_list())
            raise rows.error(place, f"the label {cell} has another length than the first row's")
        columns = [columns[0].list.get(place) for place in range(lengths[0])]
        names = [f"{names[0]} {i}" for i in range(len(columns))] if len(columns) != 1 else names
    _require_few(rows.file, len(rows.numbers), len(columns), "numbers each")
    values = np.empty((len(rows.numbers), len(columns)), np.float32)
    for i, column in enumerate(columns):
        numbers = column.str.strip_chars().cast(pl.Float64, strict=False).cast(pl.Float32)
        if (place := _first(~numbers.is_finite().fill_null(False))) is not None:
            must = f"correct it, remove the row, or set {key}.kind=class"
            raise rows.error(
                place, f"the label {quoted(column[place])} is no finite number: {must}"
            )
        values[:, i] = numbers.to_numpy()
        if kind == "labels" and (place := _first((numbers != 0) & (numbers != 1))) is not None:
            must = f"must be 0 or 1, or set {key}.kind=numbers"
            raise rows.error(place, f"{quoted(names[i])} is {quoted(column[place])}: {must}")
    return Labels(kind, names, values.astype(np.uint8) if kind == "labels" else values)


def _require_few(file: Path, rows: int, labels: int, what: str) -> None:
    """Raise DataError if the labels take too much memory."""
    if rows * labels > MOST_VALUES:
        raise DataError(
            f"{file}: {rows} rows with {labels} {what}, {rows * labels} values together: a table "
            f"may have at most {MOST_VALUES}; remove labels that few rows have, or rows"
        )


# Splits


def _by_hash(paths: pl.Series, fraction: float) -> pl.Series:
    slices = paths.to_frame().iter_slices(1 << 13)  # all as Python objects would take much memory
    chosen = [chosen_for_val(each.to_series().to_list(), fraction) for each in slices]
    return pl.Series(np.concatenate(chosen))


def _by_column(column: pl.Series) -> tuple[pl.Series, list[str]]:
    """Whether each row is `val`, null for a row that is not used; and how many are not, and why."""
    texts = column.fill_null("").str.strip_chars().str.to_lowercase()
    is_val = texts.replace_strict(_IS_VAL, default=None, return_dtype=pl.Boolean)
    others = texts.filter(is_val.is_null()).value_counts(sort=True).rows()
    return is_val, [f"{count} of split {quoted(name)}" for name, count in others[:9]]


def _check_splits(file: Path, table: Table, others: list[str], *, by_column: bool) -> None:
    """Raise DataError for splits that cannot be trained on, or warn if a hash made them."""
    for split in SPLITS:
        if not len(table.places(split)):
            rest = f"; not used: {', '.join(others)}" if others else ""
            raise DataError(f"{file} has no row for {split}{rest}: both train and val need some")
    labels = table.labels
    if labels.kind == "numbers":
        return
    if not labels.names:
        raise DataError(f"{file}: no row has a label")
    if labels.kind == "class" and len(labels.names) == 1:
        only = quoted(labels.names[0])
        raise DataError(f"{file}: all rows have the label {only}; training needs two or more")
    unknown = np.flatnonzero(labels.has(table.is_val) & ~labels.has(~table.is_val)).tolist()
    if not unknown:
        return
    examples = ", ".join(quoted(labels.names[number]) for number in unknown[:5])
    found = f"{file}: {len(unknown)} labels are in val but not in train: {examples}"
    if by_column:
        raise DataError(f"{found}: move some of their rows to train, or remove them")
    log.warning("%s; training cannot learn them", found)


# Files of images


def _check_files(table: Table, data: DataConfig) -> None:
    """Raise DataError for missing files, or warn if damaged images may be skipped."""
    text = table.paths.text[:-1].tobytes().decode()
    paths = pl.Series([text]).str.split("\0").explode()
    missing, checked = find_missing(table.folder, paths)
    if checked < len(paths):
        log.warning(
            "%s is slow: %d of %d files were looked up, the others are once they are read",
            *(table.folder, checked, len(paths)),
        )
    if missing:
        found = f"{len(missing)} of {checked} files are missing: {_examples(table, missing)}"
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
            *(len(others), _examples(table, others)),
        )


def find_missing(folder: str, paths: pl.Series) -> tuple[list[int], int]:
    """The places of paths without a file, ascending, and how many were checked in time.

    Lists each folder once.
    """
    frame = pl.DataFrame({"path": paths}).with_row_index("place")
    frame = frame.with_columns(parent=pl.col("path").str.extract("(?s)^(.*/)").fill_null(""))
    parents = frame.group_by("parent", maintain_order=True).agg("place", "path")
    missing, checked, end = list[int](), 0, time.monotonic() + LISTING_SECONDS
    for parent, places, of_parent in parents.iter_rows():
        if time.monotonic() > end:
            break
        there = {f"{parent}{name}" for name in _listed(f"{folder}/{parent}")}
        if not there.issuperset(of_parent):
            missing += [i for i, path in zip(places, of_parent, strict=True) if path not in there]
        checked += len(of_parent)
    return sorted(missing), checked


def _listed(folder: str) -> list[str]:
    """The names in a folder; none if it does not exist."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _examples(table: Table, places: Sequence[int]) -> str:
    first = [f"{table.paths[place]} (row {table.rows[place]})" for place in places[:_EXAMPLES]]
    more = [f"{len(places) - _EXAMPLES} more"] if len(places) > _EXAMPLES else []
    return printable(", ".join([*first, *more]))
