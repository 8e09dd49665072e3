"""Images and labels that a table lists (data=manifest): CSV, TSV, Parquet or JSON lines.

A folder whose splits hold a metadata.csv each, as Hugging Face's imagefolder, is a table, too. Each
row is used or accounted for in the log. A wrong one stops the job and is named by its number,
which counts from 1, without the header and blank lines.
"""

from __future__ import annotations

import logging
import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from entry_point.config.config_errors import near
from entry_point.config.data_config import DataConfig, PathsConfig, TableConfig, share_to_skip
from entry_point.contract.printable import printable
from entry_point.data.errors import DataError
from entry_point.data.patience import patiently
from entry_point.data.sources.dataset_description import CLASS_NAME, SPLITS, Kind, is_class_name
from entry_point.data.sources.folder import (
    VAL_FRACTION,
    chosen_for_val,
    log_formats,
)
from entry_point.data.sources.formats import is_table, metadata_tables
from entry_point.data.sources.source import LONGEST_RUN, FileSource, PathList
from entry_point.data.sources.table_files import METADATA, column_names, quoted, read_columns

log = logging.getLogger(__name__)

PATHS = ("path", "file", "file_name", "filename", "image", "image_path", "source-ref")
LABELS = ("label", "labels", "class")
SPLIT, MASK = "split", "mask"
MOST_VALUES = 1 << 30
"""Rows times labels (or numbers) of a table. Training takes them as float32, 4 GB at most."""
_IS_VAL = {"train": False, "training": False, "val": True, "valid": True, "validation": True}
_ODD_PATH = r"^\s*$|(^|/)(\.|/|$)|://|\x00"
_WHOLE = r"^[+-]?\d{1,18}$"
_EXAMPLES = 3

_opened: dict[str, Table] = {}
"""The last table, for the other split."""


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


class ManifestSource(FileSource):
    """The rows of one split, in the order of the table."""

    def __init__(self, table: Table, split: str) -> None:
        self._table, self._places = table, table.places(split)
        self.folder, labels = table.folder, table.labels
        super().__init__([], labels.values[self._places], labels.names, labels.kind)

    def listing(self) -> Iterable[bytes]:
        """See ListedSource."""
        yield self._table.paths.only(self._places)

    def file(self, index: int) -> str:
        return f"{self.folder}/{self._table.paths[int(self._places[index])]}"


def open_manifest(data: DataConfig, root: Path, split: str) -> ManifestSource:
    """The split of the table `root`, or of the tables in the folder `root`. Raises DataError.

    A file that does not exist counts as a damaged image, see `data.max_bad_fraction`.
    """
    tables = metadata_tables(root)
    file = _only_table(root) if root.is_dir() and not tables else root
    changed = [each.stat().st_mtime_ns for each in tables.values() or [file] if each.is_file()]
    stamp = repr((file, changed, data))
    if stamp not in _opened:
        images = Path(data.images) if data.images else None
        table = read_table(file, images, data.table, data.val_fraction, "data.table")
        where = replace(data, root=str(file))
        _check_files(table.folder, table.paths, table.rows, table.is_val, where)
        log_formats(file, table.paths.jpegs, len(table.paths))
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


class Rows(NamedTuple):
    """Rows of a table, or of several, and what messages name."""

    file: Path
    key: str
    """Group of the settings: `data.table`, or `table` when packing."""
    numbers: pl.Series
    tables: Sequence[tuple[int, Path]] = ()
    """Of several tables, the place of the first row of each."""

    def setting(self, name: str) -> str:
        """A setting beside the group: `data.images`, or `images` when packing."""
        return self.key.removesuffix("table") + name

    def error(self, place: int, reason: str) -> DataError:
        file = next((each for first, each in reversed(self.tables) if first <= place), self.file)
        return DataError(f"{file}, row {self.numbers[place]}: {reason}")

    def refuse(self, wrong: pl.Series, reason: str) -> None:
        """Raise DataError for the first place that is true."""
        if wrong.any():
            raise self.error(wrong.arg_max() or 0, reason)


def read_table(
    file: Path, images: Path | None, settings: TableConfig, val_fraction: float | None, key: str
) -> Table:
    """Raises DataError, which names the file and the row, for whatever cannot be used.

    Args:
        file: A table, or a folder with `metadata_tables`.
        images: Folder of the images; None: the table's.
        val_fraction: Share of the rows that is `val`, for a table that has no row for it; 0: there
            need be none.
        key: Group of the settings in messages: `data.table`, or `table` when packing.
    """
    by_split = metadata_tables(file)
    first = next(iter(by_split.values()), file)
    names, folder = column_names(first), _folder(images, file)
    path = settings.path or _usual(first, names, PATHS, f"the images' paths: set {key}.path")
    labels = settings.labels or [_usual(first, names, LABELS, f"labels: set {key}.labels")]
    split = SPLIT if by_split else settings.split or (SPLIT if SPLIT in names else None)
    if by_split:
        rows, frame = _read_each(file, by_split, key, path, labels)
    else:
        frame = _read(file, names, [path, *([split] if split else [])], labels)
        rows = Rows(file, key, _count(frame))
    paths = _relative_paths(rows, frame[path], folder, settings.prefix)
    column = None if split is None else frame[split]
    is_val, unused, fraction = _divided(rows, paths, column, val_fraction)
    if fraction is None:
        how = "by the folders" if by_split else f"by the column {quoted(split)}"
    else:
        how = f"by a hash of the paths, val_fraction={fraction:g}"
    count = len(frame)
    used = is_val.is_not_null()
    rows, paths = rows._replace(numbers=rows.numbers.filter(used)), paths.filter(used)
    _require_distinct(rows, paths)
    found = _read_labels(rows, frame.filter(used).select(labels).get_columns(), settings)
    table = Table(
        folder, rows.numbers.to_numpy(), _path_list(paths), is_val.drop_nulls().to_numpy(), found
    )
    rest = f"; not used: {', '.join(unused)}" if unused else ""
    _check_splits(rows, table, rest, fraction)
    _log(file, table, count, how, rest)
    if found.kind == "labels" and len(labels) == 1 and (found.values.sum(axis=1) <= 1).all():
        line = "%s: no row has several labels; %s.separator=%s separates them in a cell"
        log.warning(line, printable(str(file)), key, settings.separator)
    return table


def _log(file: Path, table: Table, count: int, how: str, rest: str) -> None:
    kind = {"class": "classes", "labels": "labels", "numbers": "numbers"}[table.labels.kind]
    counts = count, *(len(table.places(each)) for each in SPLITS)
    line = "%s: %d rows: %d to train on, %d to validate (%s), %s: %d%s"
    log.info(line, printable(str(file)), *counts, how, kind, len(table.labels.names), rest)


def read_paths(
    file: Path, images: Path | None, settings: PathsConfig
) -> tuple[PathList, PathList, str]:
    """The paths of a table as it names them, and relative to the folder, which is the third.

    Raises DataError, which names the file and the row.
    """
    names, folder = column_names(file), _folder(images, file)
    column = settings.path or _usual(file, names, PATHS, "the images' paths: set table.path")
    given = _read(file, names, [column], [])[column]
    rows = Rows(file, "table", _count(given))
    paths = _relative_paths(rows, given, folder, settings.prefix)
    return _path_list(given), _path_list(paths), folder


def read_masks(
    file: Path, images: Path | None, settings: TableConfig, split: str
) -> tuple[list[str], list[str], str]:
    """The split's paths of images and of their masks, relative to the folder, which is the third.

    Raises DataError, which names the file and the row.
    """
    _, files, masks, folder = _masked_rows(file, images, settings, split)
    return files.to_list(), masks.to_list(), folder


def check_masks(data: DataConfig, file: Path, split: str) -> None:
    """Raise DataError for a missing image, see `open_manifest`, and for any missing mask."""
    images = Path(data.images) if data.images else None
    rows, files, masks, folder = _masked_rows(file, images, data.table, split)
    alike = np.zeros(len(rows), bool)
    _check_files(folder, _path_list(files), rows.to_numpy(), alike, data)
    _check_files(folder, _path_list(masks), rows.to_numpy(), alike, data, may_skip=False)


def _masked_rows(
    file: Path, images: Path | None, settings: TableConfig, split: str
) -> tuple[pl.Series, pl.Series, pl.Series, str]:
    """The numbers of the split's rows, and as `read_masks`."""
    names, folder = column_names(file), _folder(images, file)
    path = settings.path or _usual(file, names, PATHS, "the images' paths: set data.table.path")
    mask, of_splits = (settings.labels or [MASK])[0], settings.split or SPLIT
    frame = _read(file, names, [path, mask, of_splits], [])
    rows = Rows(file, "data.table", _count(frame))
    files, masks = (
        _relative_paths(rows, frame[column], folder, settings.prefix) for column in (path, mask)
    )
    _require_distinct(rows, files)
    wanted = (_by_column(frame[of_splits])[0] == (split == "val")).fill_null(False)
    if not wanted.any():
        raise DataError(f"{file}: no row of the column {quoted(of_splits)} is {split}")
    return rows.numbers.filter(wanted), files.filter(wanted), masks.filter(wanted), folder


def lists_masks(file: Path, settings: TableConfig) -> bool:
    """Whether the table has masks instead of labels; of a column by any name, its cells tell."""
    names = column_names(file)
    if not settings.labels:
        return MASK in names and not any(name in names for name in LABELS)
    column = settings.labels[0]
    if column not in names:
        return False
    cells = read_columns(file, [column])[column]
    return cells.dtype == pl.String and bool(cells.str.ends_with(".png").any())


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
    frame = read_columns(file, columns)
    for name in texts:
        if frame[name].dtype != pl.String:
            raise DataError(f"{file}: the column {quoted(name)} holds lists: must be text")
    return frame


def _read_each(
    root: Path, tables: Mapping[str, Path], key: str, path: str, labels: Sequence[str]
) -> tuple[Rows, pl.DataFrame]:
    """The rows of the table of each split, with a column of splits; paths are below `root`."""
    frames, starts, numbers = list[pl.DataFrame](), [], []
    for split, table in tables.items():
        frame = _read(table, column_names(table), [path], labels)
        starts.append((sum(map(len, frames)), table))
        numbers.append(_count(frame))
        start = pl.lit(f"{table.parent.relative_to(root)}/")
        below = (start + pl.col(path)).alias(path)
        frames.append(frame.with_columns(below, pl.lit(split).alias(SPLIT)))
        if frames[-1].schema != frames[0].schema:
            raise DataError(f"{table}: its columns are of other types than those of train")
    return Rows(root, key, pl.concat(numbers), starts), pl.concat(frames)


def _count(rows: pl.DataFrame | pl.Series) -> pl.Series:
    return pl.arange(1, len(rows) + 1, dtype=pl.UInt32, eager=True)


def _has(names: list[str]) -> str:
    return f"; it has {', '.join(map(quoted, names[:20])) or 'no columns'}"


# Paths


def _folder(images: Path | None, file: Path) -> str:
    return os.path.normpath((images or (file if file.is_dir() else file.parent)).absolute())


def _relative_paths(rows: Rows, column: pl.Series, folder: str, prefix: str | None) -> pl.Series:
    """The paths relative to the folder. Raises DataError for one that leads out of it."""
    given = column.fill_null("").str.strip_prefix(prefix or "")
    start = f"{folder.rstrip('/')}/"
    paths = given.str.strip_prefix(start)
    odd, found = paths.str.contains(_ODD_PATH).arg_true(), []
    for place in odd.to_list():
        path, shown = given[place], f"the path {quoted(given[place])}"
        if "://" in path:
            must = f"set {rows.key}.prefix to the part of it that the folder {folder} stands for"
            raise rows.error(place, f"{shown} is no file: {must}")
        if not path.strip() or path.endswith("/") or "\0" in path:
            raise rows.error(place, f"{shown} is empty, ends in /, or holds a NUL character")
        found.append(posixpath.normpath(posixpath.join(folder, path)).removeprefix(start))
        if found[-1].startswith("/"):
            must = f"set {rows.setting('images')} to a folder that holds all images"
            raise rows.error(place, f"{shown} leads out of the folder {folder}: {must}")
    return paths.scatter(odd, found) if found else paths


def _path_list(paths: pl.Series) -> PathList:
    return PathList.of(paths.str.join("\0").item().encode() + b"\0")


def _require_distinct(rows: Rows, paths: pl.Series) -> None:
    """Raise DataError if an image is in two rows, perhaps with two labels or in both splits."""
    again = ~paths.is_first_distinct()
    if again.any():
        path = paths[again.arg_max() or 0]
        first = rows.numbers[(paths == path).arg_max() or 0]
        remedy = "keep one of them; several labels of an image go into one cell"
        rows.refuse(again, f"{quoted(path)} is in row {first}, too: {remedy}")


# Labels


def _read_labels(rows: Rows, columns: list[pl.Series], settings: TableConfig) -> Labels:
    """The labels of columns of text, or of one of lists of text. Raises DataError."""
    if columns[0].is_empty():
        return Labels("class", [], np.zeros(0, np.int32))
    for column in columns:
        rows.refuse(column.is_null(), f"has no {quoted(column.name)}: add one, or remove the row")
    column, kind = columns[0], settings.kind
    if kind is None:
        kind = "numbers" if len(columns) > 1 else _guess(column, settings.separator)
    if kind == "numbers" or len(columns) > 1:
        return _numbers(rows, columns, kind)
    places, items = _items(rows, column, kind, settings.separator)
    names = items.unique(maintain_order=True).to_list()  # the first wrong one is named
    for name in names:
        if reason := _refuse_name(name, is_guess=settings.kind is None):
            raise rows.error(places[(items == name).arg_max() or 0], reason)
    is_whole = all(re.match(_WHOLE, name) for name in names)
    names.sort(key=(lambda name: (int(name), name)) if is_whole else None)
    numbers = items.cast(pl.Enum(names)).to_physical().cast(pl.Int32).to_numpy()
    if kind == "class":
        return Labels(kind, names, numbers)
    _require_few(rows, len(names), "different labels")
    values = np.zeros((len(column), len(names)), np.uint8)
    values[places.to_numpy(), numbers] = 1
    return Labels(kind, names, values)


def _items(
    rows: Rows, column: pl.Series, kind: Kind, separator: str
) -> tuple[pl.Series, pl.Series]:
    """Each label of each row: the row's place, and the text."""
    frame = pl.DataFrame({"place": np.arange(len(column)), "item": column})
    if isinstance(column.dtype, pl.List):
        if kind == "class":
            wrong = column.list.len() != 1
            shown = quoted(column[wrong.arg_max() or 0].to_list())
            must = f"set {rows.key}.kind=labels"
            rows.refuse(wrong, f"the label {shown} is not one class: {must}")
        frame = frame.filter(column.list.len() > 0).explode("item")
    elif kind == "labels":
        frame = frame.with_columns(pl.col("item").str.split(separator)).explode("item")
        frame = frame.filter(pl.col("item").str.strip_chars() != "")
    return frame["place"], frame["item"].fill_null("").str.strip_chars()


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
    if not name or (is_guess and name.lower() == "nan"):
        return f"the label is {'NaN' if name else 'empty'}: add one, or remove the row"
    return "" if is_class_name(name) else f"the label {quoted(name)}: {CLASS_NAME}"


def _numbers(rows: Rows, columns: list[pl.Series], kind: Kind) -> Labels:
    """One or more numbers per row; those of kind `labels` say which labels it has."""
    names = [column.name for column in columns]
    if len(columns) == 1 and isinstance(columns[0].dtype, pl.List):
        lengths = columns[0].list.len()
        wrong = lengths != lengths[0]
        cell = quoted(columns[0][wrong.arg_max() or 0].to_list())
        rows.refuse(wrong, f"the label {cell} has another length than the first row's")
        columns = [columns[0].list.get(place) for place in range(lengths[0])]
        names = [f"{names[0]} {i}" for i in range(len(columns))] if len(columns) != 1 else names
    _require_few(rows, len(columns), "numbers each")
    values = np.empty((len(rows.numbers), len(columns)), np.float32)
    for i, column in enumerate(columns):
        numbers = column.str.strip_chars().cast(pl.Float64, strict=False).cast(pl.Float32)
        wrong = ~numbers.is_finite().fill_null(False)
        must = f"correct it, remove the row, or set {rows.key}.kind=class"
        shown = quoted(column[wrong.arg_max() or 0])
        rows.refuse(wrong, f"the label {shown} is no finite number: {must}")
        if kind == "labels":
            wrong = (numbers != 0) & (numbers != 1)
            must = f"must be 0 or 1, or set {rows.key}.kind=numbers"
            shown = quoted(column[wrong.arg_max() or 0])
            rows.refuse(wrong, f"{quoted(names[i])} is {shown}: {must}")
        values[:, i] = numbers.to_numpy()
    return Labels(kind, names, values.astype(np.uint8) if kind == "labels" else values)


def _require_few(rows: Rows, labels: int, what: str) -> None:
    """Raise DataError if the labels take too much memory."""
    count = len(rows.numbers)
    if count * labels > MOST_VALUES:
        raise DataError(
            f"{rows.file}: {count} rows with {labels} {what}, {count * labels} values together: a "
            f"table may have at most {MOST_VALUES}; remove labels that few rows have, or rows"
        )


# Splits


def _divided(
    rows: Rows, paths: pl.Series, column: pl.Series | None, val_fraction: float | None
) -> tuple[pl.Series, list[str], float | None]:
    """As `_by_column`; and the share of `val` if a hash chose it."""
    is_val, unused = pl.repeat(False, len(paths), eager=True), list[str]()
    if column is None:
        val_fraction = VAL_FRACTION if val_fraction is None else val_fraction
    else:
        is_val, unused = _by_column(column)
        if val_fraction and is_val.any():
            given = f"{rows.setting('val_fraction')}={val_fraction}"
            raise DataError(f"{given}: {rows.file} has rows for val; remove one of them")
    if val_fraction is None or is_val.any():
        return is_val, unused, None
    return _by_hash(paths, val_fraction).set(is_val.is_null(), None), unused, val_fraction


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


def _check_splits(rows: Rows, table: Table, rest: str, fraction: float | None) -> None:
    """Raise DataError for splits that cannot be trained on, or warn if a hash made them."""
    file = rows.file
    for split in SPLITS if fraction != 0 else SPLITS[:1]:
        if not len(table.places(split)):
            must = "both train and val need some"
            if split == "val" and fraction is None:
                must += f"; {rows.setting('val_fraction')}=0.1 takes a tenth of train"
            raise DataError(f"{file} has no row for {split}{rest}: {must}")
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
    if fraction is None:
        raise DataError(f"{found}: move some of their rows to train, or remove them")
    log.warning("%s; training cannot learn them", found)


# Files of images


def _check_files(
    folder: str,
    paths: PathList,
    rows: NDArray[np.uint32],
    is_val: NDArray[np.bool_],
    data: DataConfig,
    *,
    may_skip: bool = True,
) -> None:
    """Raise DataError for missing files, or warn if damaged images `may_skip`."""
    missing = _missing(folder, paths)
    if not missing:
        return
    first = [f"{paths[place]} (row {rows[place]})" for place in missing[:_EXAMPLES]]
    more = [f"{len(missing) - _EXAMPLES} more"] if len(missing) > _EXAMPLES else []
    examples, check = printable(", ".join([*first, *more])), data.check_command()
    found = f"{len(missing)} of {len(rows)} files are missing: {examples}"
    if data.max_bad_fraction and may_skip:
        log.warning("%s; %s", found, check)
        return
    or_skip = ""
    if may_skip and (share := _share_to_skip(is_val, missing)):
        or_skip = f", or set data.max_bad_fraction={share}"
    raise DataError(f"{found}; correct the table or data.images{or_skip}; {check}")


def _share_to_skip(is_val: NDArray[np.bool_], missing: list[int]) -> float | None:
    """As `share_to_skip`, of the split that needs the larger share; None also for a long run."""
    is_missing = np.zeros(len(is_val), bool)
    is_missing[missing] = True
    shares = list[float | None]()
    for lost in (is_missing[is_val], is_missing[~is_val]):
        if lost.any():
            # Between files that are there; the last is followed by the first.
            runs = np.diff(np.flatnonzero(~np.tile(lost, 2))) - 1
            too_long = not len(runs) or runs.max() > LONGEST_RUN
            shares.append(None if too_long else share_to_skip(int(lost.sum()), len(lost)))
    return max(filter(None, shares)) if all(shares) else None


def _missing(folder: str, paths: PathList) -> list[int]:
    """The places of paths without a file, ascending. Lists each folder once."""
    each = pl.Series([paths.text[:-1].tobytes().decode()]).str.split("\0").explode()
    frame = pl.DataFrame({"path": each}).with_row_index("place")
    frame = frame.with_columns(parent=pl.col("path").str.extract("(?s)^(.*/)").fill_null(""))
    missing = list[int]()
    for parent, places, of_parent in frame.group_by("parent").agg("place", "path").iter_rows():
        there = {f"{parent}{name}" for name in patiently(_listed, f"{folder}/{parent}")}
        if not there.issuperset(of_parent):
            missing += [i for i, path in zip(places, of_parent, strict=True) if path not in there]
    return sorted(missing)


def _listed(folder: str) -> list[str]:
    """The names in a folder; none if it does not exist."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return []
