"""Says what lies where a file is missing, and completes ids that a table names without a suffix."""

from __future__ import annotations

import errno
import logging
import os
from bisect import bisect
from pathlib import Path, PurePosixPath

import polars as pl

from entry_point.data.errors import DataError
from entry_point.data.patience import patiently
from entry_point.data.sources.folder import folded
from entry_point.data.sources.rows import IMAGE_SUFFIXES
from entry_point.job.program import printable

log = logging.getLogger(__name__)

_SHOWN = 3
_SUFFIX = rf"(?i)\.(?:{'|'.join(suffix[1:] for suffix in IMAGE_SUFFIXES)})$"


def nearest_names(folder: str, path: str) -> str:
    """Returns what lies where `path` is missing below `folder`, as in "FOLDER/cats holds 1.JPG,
    2.jpg and 7 more".

    Of many names, those next to it in the alphabet are shown. If the path's own folder is missing,
    they are those in the nearest one above.
    """
    above = [Path(folder, parent) for parent in PurePosixPath(path).parents]
    where = next(filter(os.path.isdir, above), None)
    if where is None:
        return f"there is no folder {printable(folder)}"
    lost = Path(folder, path).relative_to(where).parts[0]
    names = sorted(names_in(str(where)), key=folded)
    start = bisect(names, folded(lost), key=folded) - _SHOWN // 2
    start = max(min(start, len(names) - _SHOWN), 0)
    shown = names[start : start + _SHOWN]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return printable(f"{where} holds {', '.join(shown) or 'nothing'}{more}")


def names_in(folder: str) -> list[str]:
    """Returns the names in a folder; none if it does not exist. Raises ReadError, see
    `patiently`."""
    try:
        return patiently(os.listdir, folder)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            raise
        return []


def with_suffixes(folder: str, paths: pl.Series) -> pl.Series:
    """Returns paths of images for ids, as `a/1.jpg` for `a/1`; what is not an id stays as it is.

    They are ids if none has the suffix of an image. An id that is there as it is, or not at all,
    stays as it is. Raises DataError for an id of two images. Lists a folder once.
    """
    if paths.head(1).str.contains(_SUFFIX).any() or paths.str.contains(_SUFFIX).any():
        return paths
    parents = paths.str.extract("(?s)^(.*/)").fill_null("").to_list()
    images = {parent: _images_by_id(f"{folder}/{parent}") for parent in {*parents}}
    completed, count = paths.to_list(), 0
    for place, parent in enumerate(parents):
        name = completed[place][len(parent) :]
        first, *others = images[parent].get(name, [name])
        if others:
            where = printable(f"{folder}/{parent}".rstrip("/"))
            both = printable(f"{first} and {others[0]} are there, and the table names {name}")
            raise DataError(f"{where}: {both}: write the suffixes into the table")
        completed[place] = f"{parent}{first}"
        count += first != name
    if count:
        line = "%s: %d of %d paths have no suffix, and are completed by that of their image"
        log.info(line, printable(folder), count, len(paths))
    return pl.Series(paths.name, completed, pl.String)


def _images_by_id(folder: str) -> dict[str, list[str]]:
    """Returns the images in a folder, by their names without suffix that no file has."""
    names, images = sorted(names_in(folder)), dict[str, list[str]]()
    for name in names:
        stem, suffix = os.path.splitext(name)  # noqa: PTH122
        if suffix.lower() in IMAGE_SUFFIXES:
            images.setdefault(stem, []).append(name)
    for name in names:
        images.pop(name, None)
    return images
