"""Reads tables of images and labels: CSV, TSV, Parquet or JSON lines.

One table, one for each split (train.csv and val.csv), or one in the folder of each split, as
Hugging Face's imagefolder (train/metadata.csv). Each row is used or accounted for in the log. A
wrong one stops the job and is named by its number, which counts from 1, without the header and
blank lines.
"""

from __future__ import annotations

import logging
import os
import posixpath
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from entry_point.config.commands import check_command
from entry_point.config.config_errors import near
from entry_point.config.data_config import DataConfig, PathsConfig, TableConfig
from entry_point.data.errors import DataError, share_to_skip
from entry_point.data.plan.samples import Ints
from entry_point.data.sources.dataset_description import SPLITS
from entry_point.data.sources.folder import Tree
from entry_point.data.sources.labels import quoted
from entry_point.data.sources.missing_files import names_in, nearest_names, with_suffixes
from entry_point.data.sources.rows import (
    IMAGE_SUFFIXES,
    LABEL_NAMES,
    Cells,
    Files,
    Labels,
    PathList,
    Places,
    Rows,
    Words,
)
from entry_point.data.sources.source import LONGEST_RUN
from entry_point.data.sources.splits import split_called
from entry_point.data.sources.table_files import METADATA, column_names, has_header, read_columns
from entry_point.data.sources.table_folder import LIST_SUFFIXES, Table, choose_tables
from entry_point.job.program import printable

log = logging.getLogger(__name__)

PATHS = (
    *("path", "file", "file_name", "filename", "image", "image_path", "source-ref"),
    *("image_id", "id_code", "id"),  # last: beside a path, they are numbers
)
"""The usual names of the column of paths: the first that a table has is read."""
SPLIT, MASK = "split", "mask"
_ODD_PATH = r"^\s*$|(^|/)(\.|/|$)|://|\x00"
_ELSEWHERE = r"/|\w+:/|.*\\"
"""How paths begin, or what they contain, that no folder of tables on this machine has."""
_LONGEST_PATH = 4096
_EXAMPLES = 3


def list_table(tree: Tree, data: DataConfig, labeled: bool = True) -> Rows:
    """Returns the rows of a table, or of those in a folder; without labels, the images that it
    names.

    Raises DataError, which names the file and the row, for whatever cannot be used. A file that
    does not exist counts as a damaged image, see `data.max_bad_fraction`.
    """
    where = tree.root
    if not labeled:
        return _list_paths(where, data.images, data.table)
    tables = choose_tables(tree) if where.is_dir() else [Table("", where)]
    settings, first = data.table, tables[0].file
    names = column_names(first)
    path, labels = _columns(first, names, settings.path, settings.labels)
    folder = _folder(data.images, where if where.is_dir() else first)
    _require_header(first, folder, path)
    places, frame, words = _read_tables(tables, settings, folder, path, labels)
    paths = _relative_paths(places, frame[path], folder)
    if not words.told_by and data.val_fraction is None:
        words = _words_of_paths(paths)
    paths = with_suffixes(folder, paths)
    _require_distinct(places, paths)
    listed = _path_list(paths)
    cells = Cells(frame.select(labels).get_columns(), where)
    what = "a table" if len(tables) == 1 else f"{len(tables)} tables"
    if not has_header(first):
        what += f" without a header (columns {', '.join(map(printable, names))})"
    return Rows(what, listed, Files(folder, listed), cells, words, places, is_list=True)


def _list_paths(file: Path, images: str | None, settings: PathsConfig) -> Rows:
    """Returns the images that a table names, whatever their labels. Raises DataError."""
    names, folder = column_names(file), _folder(images, file)
    column, _ = _columns(file, names, settings.path)
    _require_header(file, folder, column)
    given = _read(file, names, [column], [])[column]
    paths = _of_this_machine(file, folder, given, settings.prefix)
    paths = _relative_paths(_places(file, given), paths, folder)
    listed = _path_list(with_suffixes(folder, paths))
    typed, none = _path_list(given.fill_null("")), Labels.unknown(len(given))
    return Rows("a table", typed, Files(folder, listed), none, Words.none(len(given)))


def list_masked(tree: Tree, data: DataConfig, classes: list[str]) -> Rows:
    """Returns the rows of a table of images and their masks. Raises DataError, which names the
    file and the row."""
    file, settings, names = tree.root, data.table, column_names(tree.root)
    path, (mask, *_) = _columns(file, names, settings.path, settings.labels or [MASK])
    folder = _folder(data.images, file)
    _require_header(file, folder, path)
    places, frame, words = _read_tables([Table("", file)], settings, folder, path, [mask])
    images = _relative_paths(places, frame[path], folder)
    masks = _of_this_machine(file, folder, frame[mask], settings.prefix)
    of_masks = _path_list(_relative_paths(places, masks, folder))
    if not words.told_by and data.val_fraction is None:
        words = _words_of_paths(images)
    _require_distinct(places, images)
    listed, labels = _path_list(images), Labels("targets", classes, np.zeros(len(images)))
    what, where = "a table of images and masks", Files(folder, listed)
    return Rows(what, listed, where, labels, words, places, of_masks, is_list=True)


def _read_tables(
    tables: Sequence[Table],
    settings: TableConfig,
    folder: str,
    path: str,
    labels: Sequence[str],
) -> tuple[Places, pl.DataFrame, Words]:
    """Returns the rows of all tables, with paths from `folder`, and what tells their splits."""
    frames, numbers, read = list[pl.DataFrame](), list[pl.Series](), list[Path]()
    told_by, words, left_out = "", list[pl.Series](), Counter[str]()
    for split, table, start in tables:
        names = column_names(table)
        if split == "test" and len(tables) > 1 and not {*names}.issuperset(labels):
            log.warning("%s has no column %s: it is not read", table, quoted(labels[0]))
            continue
        column = None if split else settings.split or (SPLIT if SPLIT in names else None)
        frame = _read(table, names, [path, *([column] if column else [])], labels)
        number = _count(frame)
        word = pl.repeat(split, len(frame), dtype=pl.String, eager=True)
        if column:
            told_by, word = f"the column {quoted(column)}", _split_words(frame[column])
            used = word.is_in(SPLITS)
            left_out.update(word.filter(~used).to_list())
            frame, number, word = frame.filter(used), number.filter(used), word.filter(used)
        paths = _of_this_machine(table, f"{folder}/{start}", frame[path], settings.prefix)
        frame = frame.with_columns((start + paths).alias(path))
        read.append(table)
        frames.append(frame.select(path, *labels))
        numbers.append(number)
        words.append(word)
        if frames[-1].schema != frames[0].schema:
            raise DataError(f"{table}: its columns are of other types than those of {read[0]}")
    if len(tables) > 1:
        apart = any(table.start for table in tables)
        told_by = "the folders of the tables" if apart else "the names of the tables"
    starts = np.cumsum([0, *map(len, frames)])[:-1].tolist()
    places = Places(read, starts, pl.concat(numbers).to_numpy())
    return places, pl.concat(frames), replace(_words(told_by, pl.concat(words)), left_out=left_out)


def _words(told_by: str, words: pl.Series) -> Words:
    different = words.unique(maintain_order=True)
    codes = words.cast(pl.Enum(different)).to_physical().to_numpy()
    return Words(told_by, different.to_list(), codes)


def _split_words(column: pl.Series) -> pl.Series:
    """Names of splits, or what stands in the cells instead."""
    texts = column.fill_null("").str.strip_chars().str.to_lowercase()
    meant = {text: split_called(text) or text for text in texts.unique().to_list()}
    return texts.replace_strict(meant, return_dtype=pl.String)


def _words_of_paths(paths: pl.Series) -> Words:
    """Returns what the folders in paths tell if each names a split, as in `train/cat/1.jpg`."""
    folders = paths.str.extract("(?s)^(.*)/").fill_null("")
    different = folders.unique(maintain_order=True)
    meant = {
        folder: next(filter(None, map(split_called, reversed(folder.split("/")))), "")
        for folder in different.to_list()
    }
    if not all(meant.values()):
        return Words.none(len(paths))
    words = folders.replace_strict(meant, return_dtype=pl.String)
    return _words("the folders in their paths", words)


def lists_masks(file: Path, settings: TableConfig) -> bool:
    """Returns whether the table has masks instead of labels; of a column by any name, its cells
    tell."""
    names = column_names(file)
    if not settings.labels:
        return MASK in names and not any(name in names for name in LABEL_NAMES)
    column = settings.labels[0]
    if column not in names:
        return False
    cells = read_columns(file, [column])[column]
    return cells.dtype == pl.String and bool(cells.str.ends_with(".png").any())


# Columns


def _columns(
    file: Path, names: list[str], path: str | None, labels: list[str] | None = None
) -> tuple[str, list[str]]:
    """Returns the columns of paths and of labels: as set, else those of usual names.

    No labels are needed if `labels` is None. Raises DataError, which asks for all that is unknown.
    """
    there, asked = {*names}, list[tuple[str, str, Sequence[str]]]()
    paths = [path] if path else [name for name in PATHS if name in there]
    if labels is not None and not labels:
        described = [name for name in names if name + METADATA in there]
        labels = [name for name in LABEL_NAMES if name in there][:1]
        labels = labels or (described if len(described) == 1 else [])
        if not labels:
            asked = [("labels", "data.table.labels=[COLUMN]", LABEL_NAMES)]
    if not paths:
        asked = [("the images' paths", "data.table.path=COLUMN", PATHS), *asked]
    if not asked:
        return paths[0], labels or []
    whats, settings, usual = zip(*asked, strict=True)
    line = f"{file} has no column of {' and none of '.join(whats)}: set {' '.join(settings)}"
    line += f", usually called {', and '.join(map(', '.join, usual))}{_has(file, names)}"
    if not paths and file.suffix.lower() in (".csv", ".tsv", *LIST_SUFFIXES):
        line += "; if its first line is a row, add a line with such names before it"
    raise DataError(line)


def _require_header(file: Path, folder: str, path: str) -> None:
    """Raise DataError if the chosen column of paths has the name of an image: it is a row's."""
    names = [f"{folder}/{path}{suffix}" for suffix in ("", *IMAGE_SUFFIXES)]
    if path not in PATHS and any(map(_is_file, names)):
        raise DataError(
            f"{file}: the column {quoted(path)} is an image: the first line is a row, not a "
            "header; add a first line with the names of the columns, such as path,label"
        )


def _read(file: Path, names: list[str], texts: list[str], labels: Sequence[str]) -> pl.DataFrame:
    """Raises DataError for a column that is missing, or that is there or chosen twice."""
    columns = [*texts, *labels]
    there, chosen = Counter(names), Counter(columns)
    for name in columns:
        if name not in there:
            meant = near(name, names[:1000])
            raise DataError(f"{file} has no column {quoted(name)}{meant}{_has(file, names)}")
        if there[name] > 1:
            raise DataError(f"{file} has two columns {quoted(name)}: rename one")
        if chosen[name] > 1:
            raise DataError(f"{file}: the column {quoted(name)} cannot hold two things")
    frame = read_columns(file, columns)
    for name in texts:
        if frame[name].dtype != pl.String:
            raise DataError(f"{file}: the column {quoted(name)} holds lists: must be text")
    return frame


def _count(rows: pl.DataFrame | pl.Series) -> pl.Series:
    return pl.arange(1, len(rows) + 1, dtype=pl.UInt32, eager=True)


def _places(file: Path, rows: pl.Series) -> Places:
    return Places([file], [0], _count(rows).to_numpy())


def _has(file: Path, names: list[str]) -> str:
    there = ", ".join(map(quoted, names[:20])) or "no columns"
    return f"; it has {'' if has_header(file) else 'no header; its columns are taken as '}{there}"


# Paths


def _folder(images: str | None, table: Path) -> str:
    """Absolute path that paths start from: of a folder of tables, the folder."""
    folder = Path(images) if images else (table if table.is_dir() else table.parent)
    return os.path.normpath(folder.absolute())


def _relative_paths(places: Places, given: pl.Series, folder: str) -> pl.Series:
    """Returns the paths relative to the folder. Raises DataError for one that leads out of it."""
    start = f"{folder.rstrip('/')}/"
    odd, found = given.str.contains(_ODD_PATH).arg_true(), []
    for place in odd.to_list():
        path, shown = given[place], f"the path {quoted(given[place])}"
        if "://" in path:
            message = f"set data.table.prefix to the part of it that the folder {folder} stands for"
            raise places.error(place, f"{shown} is not a file: {message}")
        if not path.strip() or path.endswith("/") or "\0" in path:
            raise places.error(place, f"{shown} is empty, ends in /, or holds a NUL character")
        found.append(posixpath.normpath(posixpath.join(folder, path)).removeprefix(start))
        if found[-1].startswith("/"):
            message = (
                "set data.images to a folder that holds all images, and data.table.prefix to what "
                "precedes it in the paths of another machine"
            )
            raise places.error(place, f"{shown} leads out of the folder {folder}: {message}")
    return given.scatter(odd, found) if found else given


def _of_this_machine(file: Path, folder: str, column: pl.Series, prefix: str | None) -> pl.Series:
    r"""Returns the paths without the prefix or the folder; those of another machine as below it.

    If the folder holds `cat/0.jpg`, and one of the first rows has `/home/me/pets/cat/0.jpg`,
    `s3://bucket/cat/0.jpg` or `C:\pets\cat\0.jpg`, the folder stands for what precedes `cat`.
    """
    folder = folder.rstrip("/")
    paths = column.fill_null("").str.strip_prefix(prefix or "").str.strip_prefix(f"{folder}/")
    for path in paths.head(_EXAMPLES):
        is_here = _is_file(path) or _is_file(f"{folder}/{path}")
        if is_here or len(path) > _LONGEST_PATH or not re.match(_ELSEWHERE, path):
            continue
        names = path.replace("\\", "/").split("/")
        rests = ("/".join(names[count:]) for count in range(len(names)))
        found = next((rest for rest in rests if rest and _is_file(f"{folder}/{rest}")), None)
        if found is not None:
            start = path[: len(path) - len(found)]
            shown = quoted(start) if start else "\\ as in Windows"
            log.info("%s: its paths with %s are read as from %s", file, shown, folder or "/")
            paths = paths.str.strip_prefix(start)
            return paths.str.replace_all("\\", "/", literal=True) if "\\" in path else paths
    return paths


def _is_file(path: str) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 - it may be any text


def _path_list(paths: pl.Series) -> PathList:
    return PathList.of(paths.str.join("\0").item().encode() + b"\0")


def _require_distinct(places: Places, paths: pl.Series) -> None:
    """Raise DataError if an image is in two rows, perhaps with two labels or in both splits."""
    again = ~paths.is_first_distinct()
    if again.any():
        place = again.arg_max() or 0
        path = paths[place]
        first = places.numbers[(paths == path).arg_max() or 0]
        remedy = "keep one of them; several labels of an image go into one cell"
        raise places.error(place, f"{quoted(path)} is in row {first}, too: {remedy}")


# Files of images


def require_files(rows: Rows, splits: Mapping[str, Ints], data: DataConfig) -> None:
    """Raise DataError for listed files that are missing, or warn if damaged images are skipped."""
    assert isinstance(rows.where, Files)
    _require(rows.where.folder, rows.where.files, rows, splits, data)
    if rows.masks is not None:
        _require(rows.where.folder, rows.masks, rows, splits, data, may_skip=False)


def _require(
    folder: str,
    paths: PathList,
    rows: Rows,
    splits: Mapping[str, Ints],
    data: DataConfig,
    *,
    may_skip: bool = True,
) -> None:
    missing = _missing(folder, paths)
    if not missing:
        return
    assert rows.places is not None
    numbers = rows.places.numbers
    first = [f"{paths[place]} (row {numbers[place]})" for place in missing[:_EXAMPLES]]
    more = [f"{len(missing) - _EXAMPLES} more"] if len(missing) > _EXAMPLES else []
    examples, check = printable(", ".join([*first, *more])), check_command(data)
    found = f"{len(missing)} of {len(paths)} files are missing: {examples}"
    found += f"; {nearest_names(folder, paths[missing[0]])}"
    if data.max_bad_fraction and may_skip:
        log.warning("%s; %s", found, check)
        return
    or_skip = ""
    if may_skip and (share := _share_to_skip(len(paths), splits, missing)):
        or_skip = f", or set data.max_bad_fraction={share}"
    raise DataError(
        f"{found}; correct the table, data.table.path, data.images or data.table.prefix{or_skip}; "
        f"{check}"
    )


def _share_to_skip(images: int, splits: Mapping[str, Ints], missing: list[int]) -> float | None:
    """As `share_to_skip`, of the split that needs the largest share; None also for a long run."""
    is_missing = np.zeros(images, bool)
    is_missing[missing] = True
    shares = list[float | None]()
    for lost in (is_missing[rows] for rows in splits.values()):
        if lost.any():
            # Between files that are there; the last is followed by the first.
            runs = np.diff(np.flatnonzero(~np.tile(lost, 2))) - 1
            too_long = not len(runs) or runs.max() > LONGEST_RUN
            shares.append(None if too_long else share_to_skip(int(lost.sum()), len(lost)))
    return max(filter(None, shares)) if all(shares) else None


def _missing(folder: str, paths: PathList) -> list[int]:
    """Returns the places of paths without a file, ascending. Lists each folder once."""
    each = pl.Series([paths.text[:-1].tobytes().decode()]).str.split("\0").explode()
    frame = pl.DataFrame({"path": each}).with_row_index("place")
    frame = frame.with_columns(parent=pl.col("path").str.extract("(?s)^(.*/)").fill_null(""))
    missing = list[int]()
    for parent, places, of_parent in frame.group_by("parent").agg("place", "path").iter_rows():
        there = {f"{parent}{name}" for name in names_in(f"{folder}/{parent}")}
        if not there.issuperset(of_parent):
            missing += [i for i, path in zip(places, of_parent, strict=True) if path not in there]
    return sorted(missing)
