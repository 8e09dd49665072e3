"""Finds out why files that a table lists are missing, and completes ids without a suffix."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from unicodedata import normalize

import polars as pl

from entry_point.data.errors import DataError
from entry_point.data.patience import patiently
from entry_point.data.sources.folder import (
    IMAGE_SUFFIXES,
    folded,
    is_folder,
    visible_entries,
)
from entry_point.job.program import printable

log = logging.getLogger(__name__)

_EXAMPLES = 3
"""Missing paths that are looked for."""
_FOLDERS = 20
"""Folders in which paths are looked for that may lack them."""
_SUFFIX = rf"(?i)\.(?:{'|'.join(suffix[1:] for suffix in IMAGE_SUFFIXES)})$"


def cause(folder: str, missing: Sequence[str]) -> str:
    """Returns why files are missing, as in "a.JPG is there instead of a.jpg: names differ in case".

    Looks below `folder` for the first few of the `missing` paths, and returns what explains the
    first of them; "" if nothing does. Lists a folder once.
    """
    if not os.path.isdir(folder):  # noqa: PTH112 - names may hold any characters
        return f"there is no folder {printable(folder)}"
    names = cache(_Names)
    for path in missing[:_EXAMPLES]:
        for parts, lacking, reasons in _readings(folder, path):
            found, differences = _find(f"{folder}/{lacking}", parts, names)
            if found and f"{lacking}{found}" != path:
                both = f"{lacking}{found} is there instead of {path}"
                why = ", ".join(dict.fromkeys([*reasons, *differences]))
                return printable(f"{both}: {why}")
    return ""


def _readings(folder: str, path: str) -> Iterator[tuple[list[str], str, list[str]]]:
    """Yields what may be meant: the names in the path, the folder that it lacks, and what is wrong
    then.

    The closest come first.
    """
    parts, wrong = path.split("/"), list[str]()
    yield parts, "", wrong
    if "\\" in path:
        parts, wrong = path.replace("\\", "/").split("/"), ["the path has \\ for /"]
        yield parts, "", wrong
    for count in range(1, len(parts)):
        extra = "/".join(parts[:count])
        yield parts[count:], "", [*wrong, f"the path has an extra {extra}/"]
    folders = [entry.name for entry in visible_entries(Path(folder)) if is_folder(entry)]
    for name in folders[:_FOLDERS]:
        yield parts, f"{name}/", [*wrong, f"the path lacks {name}/"]


class _Names:
    """The names in a folder, by what they have in common with misspelled ones."""

    def __init__(self, folder: str) -> None:
        names = sorted(names_in(folder))
        self.exact = {*names}
        self.alike = {folded(name).strip(): name for name in names}
        images = (name for name in names if name.lower().endswith(IMAGE_SUFFIXES))
        self.images = {folded(os.path.splitext(name)[0]): name for name in images}  # noqa: PTH122


def _find(
    folder: str, parts: Sequence[str], names: Callable[[str], _Names]
) -> tuple[str, list[str]]:
    """Returns the path below the folder that is there, "" for none, and how it differs from
    `parts`."""
    found, differences = list[str](), list[str]()
    for part in parts:
        here = names("/".join([folder.rstrip("/"), *found]))
        alike = folded(part).strip()
        name = part if part in here.exact else here.alike.get(alike)
        if name is None and len(found) + 1 == len(parts):
            stem = os.path.splitext(alike)[0]  # noqa: PTH122
            name = here.images.get(alike) or here.images.get(stem)
        if name is None:
            return "", []
        found.append(name)
        differences += [] if name == part else [_difference(part, name)]
    return "/".join(found), differences


def _difference(wanted: str, found: str) -> str:
    if normalize("NFC", wanted) == normalize("NFC", found):
        return "names differ in their Unicode form (NFC, NFD)"
    if folded(wanted) == folded(found):
        return "names differ in case"
    if folded(wanted).strip() == folded(found).strip():
        return "names differ in spaces around them"
    return "names differ in the suffix"


def names_in(folder: str) -> list[str]:
    """Returns the names in a folder; none if it does not exist. Raises ReadError, see
    `patiently`."""
    try:
        return patiently(os.listdir, folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def with_suffixes(folder: str, paths: pl.Series) -> pl.Series:
    """Returns paths of images for ids, as `a/1.jpg` for `a/1`; what is not an id stays as it is.

    They are ids if none has the suffix of an image, and some are there with one. An id that is
    there as it is, or not at all, stays as it is. Raises DataError for an id of two images. Lists
    a folder once.
    """
    if paths.head(1).str.contains(_SUFFIX).any() or paths.str.contains(_SUFFIX).any():
        return paths
    frame = paths.to_frame("path").with_row_index("place")
    frame = frame.with_columns(parent=pl.col("path").str.extract("(?s)^(.*/)").fill_null(""))
    completed, count = paths.to_list(), 0
    for parent, places in frame.group_by("parent").agg("place").iter_rows():
        there = sorted(names_in(f"{folder}/{parent}"))
        exact, images, others = {*there}, dict[str, str](), dict[str, str]()
        for name in there:
            stem, suffix = os.path.splitext(name)  # noqa: PTH122
            if suffix.lower() in IMAGE_SUFFIXES and images.setdefault(stem, name) != name:
                others[stem] = name
        for place in places:
            name = completed[place][len(parent) :]
            if name in exact or name not in images:
                continue
            if name in others:
                both, where = f"{images[name]} and {others[name]}", f"{folder}/{parent}".rstrip("/")
                wrong = f"{where}: {both} are there, and the table names {name}"
                raise DataError(f"{printable(wrong)}: write the suffixes into the table")
            completed[place] = f"{parent}{images[name]}"
            count += 1
    if not count:
        return paths
    line = "%s: %d of %d paths have no suffix, and are completed by that of their image"
    log.info(line, printable(folder), count, len(paths))
    return pl.Series(paths.name, completed, pl.String)
