"""Reads tables of images and labels: CSV, TSV, Parquet or JSON lines.

There is one table, one for each split (train.csv and val.csv), or one in the folder of each split,
as in Hugging Face's imagefolder (train/metadata.csv). All become one frame, with a row per image.
Each row is used, or counted in the log. An invalid row stops the job; the message has its number,
counted from 1 without the header and blank lines.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from entry_point.config.config_errors import did_you_mean
from entry_point.config.data_config import DataConfig, TableConfig
from entry_point.data.errors import DataError
from entry_point.data.sources.dataset_description import SPLITS
from entry_point.data.sources.folder import Tree
from entry_point.data.sources.labels import quoted
from entry_point.data.sources.listed_paths import (
    below,
    of_this_machine,
    path_list,
    require_distinct,
    with_suffixes,
)
from entry_point.data.sources.rows import (
    IMAGE_SUFFIXES,
    LABEL_NAMES,
    SPLIT,
    Cells,
    Files,
    Labels,
    Places,
    Rows,
    Words,
)
from entry_point.data.sources.splits import SPLIT_OF, split_named, splits_named
from entry_point.data.sources.table_files import (
    CSV_SUFFIXES,
    METADATA,
    TableFile,
    first_row,
    open_table,
    read_columns,
)
from entry_point.data.sources.table_folder import Table, choose_tables
from entry_point.job.text import printable

log = logging.getLogger(__name__)

PATHS = (
    *("path", "file", "file_name", "filename", "image", "image_path", "source-ref"),
    *("image_id", "id_code", "id"),  # last, because beside paths, these columns are numbers
)
"""Usual names of the column of paths: the first that a table has is read."""
MASK = "mask"


class _Columns(NamedTuple):
    """The columns of a table that are read."""

    paths: Mapping[str, str]
    """The columns of `path`, and of `mask` if there are masks."""
    labels: Sequence[str]
    split: str | None
    """The column of splits; empty if splits are ignored."""


class _Listed(NamedTuple):
    """The rows of all tables."""

    frame: pl.DataFrame
    """A row per image: `given`, its path as written in the table; `path`, below the folder; `mask`,
    if there are masks; `word`, that of its split; `row`, its number in the file; `label 0`, ...,
    its labels."""
    places: Places
    words: Words


def list_table(tree: Tree, data: DataConfig, labeled: bool = True) -> Rows:
    """Returns the rows of a table, or of the tables in a folder; without labels, the images in one
    table.

    Raises DataError for invalid content, with the file and the row. A missing file counts as a
    damaged image, see `data.max_bad_fraction`.
    """
    root, folder = tree.root, _folder(tree.root, data.images)
    tables = choose_tables(tree) if labeled and root.is_dir() else [Table("", root)]
    first = open_table(tables[0].file)
    columns = _choose_columns(first, folder, data.table, data.table.labels if labeled else None)
    frame, places, words = _read_tables(tables, data, folder, columns)
    paths = with_suffixes(folder, frame["path"])
    listed = path_list(paths)
    where = Files(folder, listed)
    if not labeled:  # keeps paths as written, also several of one image
        names, none = path_list(frame["given"]), Labels.unknown(len(frame))
        return Rows("a table", names, where, none, Words.none(len(frame)))
    require_distinct(places, paths)
    cells = [frame[f"label {i}"].alias(name) for i, name in enumerate(columns.labels)]
    what = "a table" if len(tables) == 1 else f"{len(tables)} tables"
    if not first.has_header:
        what += f" without a header (columns {', '.join(map(printable, first.names))})"
    return Rows(what, listed, where, Cells(cells, root), words, places, is_list=True)


def list_masked(tree: Tree, data: DataConfig, classes: list[str]) -> Rows:
    """Returns the rows of a table of images and their masks. Raises DataError, which names the
    file and the row."""
    table, folder = open_table(tree.root), _folder(tree.root, data.images)
    columns = _choose_columns(table, folder, data.table, data.table.labels or [MASK])
    paths = {**columns.paths, "mask": columns.labels[0]}
    columns = columns._replace(paths=paths, labels=[])
    frame, places, words = _read_tables([Table("", tree.root)], data, folder, columns)
    require_distinct(places, frame["path"])
    images, masks = path_list(frame["path"]), path_list(frame["mask"])
    labels, where = Labels("targets", classes, np.zeros(len(images))), Files(folder, images)
    what = "a table of images and masks"
    return Rows(what, images, where, labels, words, places, masks, is_list=True)


def lists_masks(file: Path, settings: TableConfig) -> bool:
    """Returns whether the table has masks instead of labels, by its column names, or by the cells
    of a column that is set."""
    table = open_table(file)
    if not settings.labels:
        return MASK in table.names and not {*table.names} & {*LABEL_NAMES}
    column = settings.labels[0]
    if column not in table.names:
        return False
    cells = read_columns(table, [column])[column]
    return cells.dtype == pl.String and bool(cells.str.ends_with(".png").any())


def _folder(root: Path, images: str | None) -> str:
    """Returns the absolute path of the folder below which paths are."""
    folder = Path(images) if images else (root if root.is_dir() else root.parent)
    return os.path.normpath(folder.absolute())


# The frame


def _read_tables(
    tables: Sequence[Table], data: DataConfig, folder: str, columns: _Columns
) -> _Listed:
    """Returns the rows of all tables whose split is one of SPLITS. Raises DataError."""
    frames, files, left_out = list[pl.DataFrame](), list[Path](), Counter[str]()
    told_by = ""
    for split, file, start in tables:
        table = open_table(file)
        if split == "test" and len(tables) > 1 and not {*table.names}.issuperset(columns.labels):
            log.warning("%s has no column %s: it is not read", file, quoted(columns.labels[0]))
            continue
        frame = _read_table(table, columns._replace(split=None) if split else columns)
        if split or not columns.split:
            frame = frame.with_columns(word=pl.lit(split))
        else:
            told_by, is_used = f"the column {quoted(columns.split)}", frame["word"].is_in(SPLITS)
            left_out.update(frame["word"].filter(~is_used).to_list())
            frame = frame.filter(is_used)
        for name in columns.paths:
            paths = of_this_machine(file, f"{folder}/{start}", frame[name], data.table.prefix)
            frame = frame.with_columns((start + paths).alias(name))
        frames.append(frame)
        files.append(file)
        if frame.schema != frames[0].schema:
            raise DataError(f"{file}: its columns are of other types than those of {files[0]}")
    if tables[0].split:
        apart = any(table.start for table in tables)
        told_by = "the folders of the tables" if apart else "the names of the tables"
    frame = pl.concat(frames)
    starts = np.cumsum([0, *map(len, frames)])[:-1].tolist()
    places = Places(files, starts, frame["row"].to_numpy())
    frame = frame.with_columns(below(folder, places, frame[name]) for name in columns.paths)
    if not told_by and data.val_fraction is None:
        words = _words_of_paths(frame["path"])
        if not words.told_by and columns.split is None:
            _name_column_of_splits(open_table(files[0]), columns)
        return _Listed(frame, places, words)
    return _Listed(frame, places, _words(told_by, frame["word"], left_out))


def _read_table(table: TableFile, columns: _Columns) -> pl.DataFrame:
    """Returns all rows of a table. Raises DataError."""
    texts = [*columns.paths.values(), *([columns.split] if columns.split else [])]
    _require_columns(table, [*texts, *columns.labels])
    cells = read_columns(table, [*texts, *columns.labels])
    for name in texts:
        if cells[name].dtype != pl.String:
            raise DataError(f"{table.file}: the column {quoted(name)} holds lists: must be text")
    words = pl.col(columns.split).fill_null("") if columns.split else pl.lit("")
    return cells.select(
        *(pl.col(column).fill_null("").alias(name) for name, column in columns.paths.items()),
        *(pl.col(column).alias(f"label {i}") for i, column in enumerate(columns.labels)),
        given=pl.col(columns.paths["path"]).fill_null(""),
        word=words.str.strip_chars().str.to_lowercase().replace(SPLIT_OF),
        row=pl.int_range(1, pl.len() + 1, dtype=pl.UInt32),
    )


def _words(told_by: str, words: pl.Series, left_out: Mapping[str, int]) -> Words:
    different = words.unique(maintain_order=True)
    codes = words.cast(pl.Enum(different)).to_physical().to_numpy()
    return Words(told_by, different.to_list(), codes, left_out)


def _name_column_of_splits(table: TableFile, columns: _Columns) -> None:
    """Warn of a column of another name that may tell splits, if nothing else does."""
    read = {*columns.paths.values(), *columns.labels}
    for name, cell in first_row(table).items():
        if name not in read and split_named(str(cell)):
            line = "%s: its column %s has %s in the first row: set data.table.split=%s if it tells "
            line += "splits"
            log.warning(line, table.file, quoted(name), quoted(cell), name)


def _words_of_paths(paths: pl.Series) -> Words:
    """Returns the words of splits in the folders of paths, as in `train/cat/1.jpg`.

    These are in the first level at which all folders name splits, and they differ: a level above
    may be of this machine, as in `/mnt/dev/photos/train/`, and one below may be a class.
    """
    folders = paths.str.extract("(?s)^(.*)/").fill_null("")
    names = {folder: folder.split("/") for folder in folders.unique().to_list()}
    levels = zip(*names.values(), strict=False)
    told = [[splits_named({*level}).get(name, "") for name in level] for level in levels]
    if told := [level for level in told if all(level)]:
        level = next((each for each in told if len({*each}) > 1), told[-1])
        meant = dict(zip(names, level, strict=True))
    else:
        splits = ((folder, map(split_named, reversed(parts))) for folder, parts in names.items())
        meant = {folder: next(filter(None, words), "") for folder, words in splits}
    if not all(meant.values()):
        return Words.none(len(paths))
    words = folders.replace_strict(meant, return_dtype=pl.String)
    return _words("the folders in their paths", words, {})


# Columns


def _choose_columns(
    table: TableFile, folder: str, settings: TableConfig, labels: Sequence[str] | None
) -> _Columns:
    """Returns the columns that are set, else those of usual names; without columns of labels and
    splits if `labels` is None.

    Raises DataError, which asks for all unknown columns, also if the first line is no header.
    """
    asked = list[tuple[str, str, Sequence[str]]]()
    there = {name.lower(): name for name in reversed(table.names)}
    there |= {name: name for name in table.names}  # exact names count before those of another case
    path = settings.path or next((there[name] for name in PATHS if name in there), "")
    if not path:
        asked.append(("the images' paths", "data.table.path=COLUMN", PATHS))
    if labels is not None and not labels:
        described = [name for name in table.names if name + METADATA in there]
        labels = [there[name] for name in LABEL_NAMES if name in there][:1]
        labels = labels or (described if len(described) == 1 else [])
        if not labels:
            asked.append(("labels", "data.table.labels=[COLUMN]", LABEL_NAMES))
    if asked:
        whats, typed, usual = zip(*asked, strict=True)
        line = f"{table.file} has no column of {' and none of '.join(whats)}: set {' '.join(typed)}"
        line += f", usually called {', and '.join(map(', '.join, usual))}{_has(table)}"
        if not path and table.file.suffix.lower() in CSV_SUFFIXES:
            line += "; if its first line is a row, add a line with such names before it"
        if labels == [] and MASK in table.names:
            line += "; for its masks, set data=masks"
        raise DataError(line)
    names = [f"{folder}/{path}{suffix}" for suffix in ("", *IMAGE_SUFFIXES)]
    if path.lower() not in PATHS and any(map(os.path.isfile, names)):
        raise DataError(
            f"{table.file}: the column {quoted(path)} is an image: the first line is a row, not a "
            "header; add a first line with the names of the columns, such as path,label"
        )
    split = settings.split or there.get(SPLIT)
    return _Columns({"path": path}, labels or [], "" if labels is None else split)


def _require_columns(table: TableFile, columns: Sequence[str]) -> None:
    """Raise DataError for a column that is missing, exists twice, or is chosen twice."""
    there, chosen = Counter(table.names), Counter(columns)
    for name in columns:
        if name not in there:
            meant = did_you_mean(name, table.names[:1000])
            raise DataError(f"{table.file} has no column {quoted(name)}{meant}{_has(table)}")
        if there[name] > 1:
            raise DataError(f"{table.file} has two columns {quoted(name)}: rename one")
        if chosen[name] > 1:
            raise DataError(f"{table.file}: the column {quoted(name)} cannot hold two things")


def _has(table: TableFile) -> str:
    there = ", ".join(map(quoted, table.names[:20])) or "no columns"
    taken = "" if table.has_header else "no header; its columns are taken as "
    return f"; it has {taken}{there}"
