"""Finds the tables in a folder: one of all images, or one for each split.

labels.csv                                one table; a column or a hash tells the splits
train.csv, val.csv                        a table for each split, with paths from the root
train/metadata.csv, val/metadata.csv      Hugging Face's imagefolder; Roboflow's _classes.csv; or
                                          any name of the only table beside images
train_lst/a.lst, validation_lst/b.lst     SageMaker's image classification, beside train/
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from entry_point.data.errors import DataError
from entry_point.data.sources.folder import Tree, split_folders
from entry_point.data.sources.rows import IMAGE_SUFFIXES
from entry_point.data.sources.splits import splits_named
from entry_point.job.text import printable

log = logging.getLogger(__name__)

TABLE_SUFFIXES = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson", ".json", ".manifest")
"""Suffixes of tables."""
LIST_SUFFIXES = (".txt", ".lst")
"""Suffixes of lists of images and labels, which have no header."""
SPLIT_TABLES = (*(f"metadata{suffix}" for suffix in TABLE_SUFFIXES), "_classes.csv")
"""Tables in the folders of splits: Hugging Face's imagefolder, and Roboflow's labels."""
IMAGE_END = re.compile(rf"(?i)\.(?:{'|'.join(suffix[1:] for suffix in IMAGE_SUFFIXES)})(?=\s|$)")
"""Matches the end of an image's path in a line."""
_LOOKED_AT = 4096
"""Number of bytes of a text file that are searched for paths of images."""


class Table(NamedTuple):
    split: str
    """The split that the name tells; "" if none."""
    file: Path
    start: str = ""
    """The folder below the root in which its paths are, as "train/"."""


def find_tables(tree: Tree) -> list[Table]:
    """Returns all tables in a folder and in its folders of splits. Raises DataError."""
    tables = list[Table]()
    for split, top in split_folders(tree).items():
        look = tree.at(top)
        names = [name for name in look.files if Path(name).suffix.lower() in TABLE_SUFFIXES]
        is_only = len(names) == 1 and len(look.folders) < 2
        found = [tree.root / top / name for name in names if is_only or name in SPLIT_TABLES]
        if (lists := f"{top}_lst") in tree.at().folders:
            names = [name for name in tree.at(lists).files if name.endswith(".lst")]
            found += [tree.root / lists / name for name in names]
        tables += [Table(split, file, f"{top}/") for file in found]
    files = [tree.root / name for name in tree.at().files]
    files = [file for file in files if _is_table(file)]
    called = splits_named([file.stem for file in files])
    return [*tables, *(Table(called.get(file.stem, ""), file) for file in files)]


def _is_table(file: Path) -> bool:
    """Returns whether a file is a table by its name, or a text file that lists images."""
    suffix = file.suffix.lower()
    if suffix not in LIST_SUFFIXES or not file.is_file():
        return suffix in TABLE_SUFFIXES
    with file.open(encoding="utf-8", errors="replace") as text:
        return bool(IMAGE_END.search(text.readline(_LOOKED_AT)))


def choose_tables(tree: Tree) -> list[Table]:
    """Returns the tables in a folder to read; a warning names the others.

    Raises DataError for no table, several of no split, and two of one split.
    """
    root, found = tree.root, find_tables(tree)
    below = [table for table in found if table.start]
    named = [table for table in found if table.split and not table.start]
    others = [table for table in found if not table.split]
    if below and ("train" in [table.split for table in below] or len(below) == len(found)):
        chosen: Sequence[Table] = below
    elif len(named) > 1 or (named and others):
        chosen = named
    elif len(found) == len(below) + 1:
        chosen = [(*named, *others)[0]._replace(split="")]
    else:
        names = ", ".join(printable(table.file.name) for table in others[:5]) or "none"
        raise DataError(
            f"{root} must hold one table, but holds {names}: name it with data.root={root}/FILE"
        )
    by_split = dict[str, Table]()
    for table in chosen:
        if (first := by_split.setdefault(table.split, table)) is not table:
            both = " and ".join(printable(str(each.file)) for each in (first, table))
            raise DataError(
                f"{both} are both tables for {table.split}: remove or rename one, or put the rows "
                "of both into one"
            )
    if unread := {table.file for table in found} - {table.file for table in chosen}:
        log.warning(
            "%s: only %s are read, the tables of splits; not read: %s",
            *(root, _names(root, [table.file for table in chosen]), _names(root, sorted(unread))),
        )
    return sorted(chosen, key=lambda table: table.split == "test")  # which may have fewer columns


def _names(root: Path, files: Sequence[Path]) -> str:
    names = [str(file.relative_to(root)) for file in files[:5]]
    return printable(", ".join(names)) + (", ..." if len(files) > 5 else "")
