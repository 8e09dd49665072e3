"""Turns listed paths into paths below a folder, and explains missing files by the names that are
there.

A path may be absolute, of another machine, or an id without the suffix of the image.
"""

from __future__ import annotations

import errno
import logging
import os
import posixpath
import re
from bisect import bisect
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import numpy as np
import polars as pl

from entry_point.config.commands import check_command
from entry_point.config.data_config import DataConfig
from entry_point.data.errors import DataError, share_to_skip
from entry_point.data.plan.samples import Ints
from entry_point.data.retries import with_retries
from entry_point.data.sources.folder import folded
from entry_point.data.sources.labels import quoted
from entry_point.data.sources.rows import IMAGE_SUFFIXES, Files, PathList, Places, Rows
from entry_point.data.sources.source import LONGEST_RUN
from entry_point.job.text import printable

log = logging.getLogger(__name__)

_SUFFIX = rf"(?i)\.(?:{'|'.join(suffix[1:] for suffix in IMAGE_SUFFIXES)})$"
_ODD_PATH = r"^\s*$|(^|/)(\.|/|$)|://|\x00"
_ELSEWHERE = r"/|\w+:/|.*\\"
"""Matches absolute paths, URIs, and paths of Windows."""
_LONGEST_PATH = 4096
_SHOWN = 3


def path_list(paths: pl.Series) -> PathList:
    return PathList.of(paths.str.join("\0").item().encode() + b"\0")


def of_this_machine(file: Path, folder: str, paths: pl.Series, prefix: str | None) -> pl.Series:
    r"""Returns the paths in a file without the prefix or the folder; those of another machine
    become paths below the folder.

    If the folder holds `cat/0.jpg`, and one of the first rows has `/home/me/pets/cat/0.jpg`,
    `s3://bucket/cat/0.jpg` or `C:\pets\cat\0.jpg`, the folder replaces the part before `cat`.
    """
    folder = folder.rstrip("/")
    paths = paths.str.strip_prefix(prefix or "").str.strip_prefix(f"{folder}/")
    for path in paths.head(_SHOWN):
        is_here = any(map(posixpath.isfile, (path, f"{folder}/{path}")))
        if is_here or len(path) > _LONGEST_PATH or not re.match(_ELSEWHERE, path):
            continue
        names = path.replace("\\", "/").split("/")
        rests = ("/".join(names[count:]) for count in range(len(names)))
        found = next((rest for rest in rests if posixpath.isfile(f"{folder}/{rest}")), None)
        if found is not None:
            start = path[: len(path) - len(found)]
            shown = quoted(start) if start else "\\ as in Windows"
            log.info("%s: its paths with %s are read as from %s", file, shown, folder or "/")
            paths = paths.str.strip_prefix(start)
            return paths.str.replace_all("\\", "/", literal=True) if "\\" in path else paths
    return paths


def below(folder: str, places: Places, paths: pl.Series) -> pl.Series:
    """Returns the paths relative to the folder. Raises DataError for one that leads out of it."""
    odd = paths.str.contains(_ODD_PATH).arg_true()
    found = [_relative(folder, places, place, paths[place]) for place in odd.to_list()]
    return paths.scatter(odd, found) if found else paths


def _relative(folder: str, places: Places, place: int, path: str) -> str:
    reason = ""
    relative = posixpath.normpath(posixpath.join(folder, path))
    relative = relative.removeprefix(f"{folder.rstrip('/')}/")
    if "://" in path:
        reason = "is not a file: set data.table.prefix to the part of it that the folder "
        reason += f"{folder} stands for"
    elif not path.strip() or path.endswith("/") or "\0" in path:
        reason = "is empty, ends in /, or holds a NUL character"
    elif relative.startswith("/"):
        reason = f"leads out of the folder {folder}: set data.images to a folder that holds all "
        reason += (
            "images, and data.table.prefix to what precedes it in the paths of another machine"
        )
    if reason:
        raise places.error(place, f"the path {quoted(path)} {reason}")
    return relative


def require_distinct(places: Places, paths: pl.Series) -> None:
    """Raise DataError if two rows have the same image, perhaps with different labels or splits."""
    again = ~paths.is_first_distinct()
    if again.any():
        place = again.arg_max() or 0
        path = paths[place]
        first = places.numbers[(paths == path).arg_max() or 0]
        remedy = "keep one of them; several labels of an image go into one cell"
        raise places.error(place, f"{quoted(path)} is in row {first}, too: {remedy}")


# Names in the folders


def with_suffixes(folder: str, paths: pl.Series) -> pl.Series:
    """Returns the paths of images for ids, such as `a/1.jpg` for `a/1`.

    Paths are ids if none has the suffix of an image. An id that is the name of a file, or of none,
    stays as it is. Raises DataError for an id of two images.
    """
    if paths.head(1).str.contains(_SUFFIX).any() or paths.str.contains(_SUFFIX).any():
        return paths
    there = _files_beside(folder, paths)
    images = pl.DataFrame({"image": there.filter(there.str.contains(_SUFFIX)).sort()})
    images = images.with_columns(path=pl.col("image").str.replace(_SUFFIX, ""))
    is_id = pl.col("path").is_in(paths.implode()) & ~pl.col("path").is_in(there.implode())
    images = images.filter(is_id)
    again = images.filter(pl.col("path").is_duplicated())
    if len(again):
        path, (one, other) = again["path"][0], again["image"].head(2)
        both = f"{one} and {other} are there, and the table names {path}"
        raise DataError(f"{folder}: {both}: write the suffixes into the table")
    if count := paths.is_in(images["path"].implode()).sum():
        line = "%s: %d of %d paths have no suffix, and are completed by that of their image"
        log.info(line, printable(folder), count, len(paths))
    return paths.replace(images["path"], images["image"])


def _files_beside(folder: str, paths: pl.Series) -> pl.Series:
    """Returns the paths of all files in the folders of `paths`. Lists each folder once."""
    parents = paths.str.extract("(?s)^(.*/)").fill_null("").unique().to_list()
    return _split(
        "\0".join(
            f"{parent}{name}" for parent in parents for name in _names_in(f"{folder}/{parent}")
        )
    )


def _split(text: str) -> pl.Series:
    """Returns the names between NULs; names that are not UTF-8 match nothing in a list."""
    text = text.encode(errors="surrogateescape").decode(errors="replace")
    return pl.Series([text], dtype=pl.String).str.split("\0").explode()


def _names_in(folder: str) -> list[str]:
    """Returns the names in a folder, or an empty list if it does not exist. Raises ReadError, see
    `with_retries`."""
    try:
        return with_retries(os.listdir, folder)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            raise
        return []


def nearest_names(folder: str, path: str) -> str:
    """Returns a text on the names where `path` is missing below `folder`, as in "FOLDER/cats holds
    1.JPG, 2.jpg and 7 more".

    Shows the names that are alphabetically next to the missing one. If the path's folder is also
    missing, the names are those in the nearest folder above.
    """
    above = [Path(folder, parent) for parent in PurePosixPath(path).parents]
    where = next(filter(os.path.isdir, above), None)
    if where is None:
        return f"there is no folder {printable(folder)}"
    lost = Path(folder, path).relative_to(where).parts[0]
    names = sorted(_names_in(str(where)), key=folded)
    start = bisect(names, folded(lost), key=folded) - _SHOWN // 2
    start = max(min(start, len(names) - _SHOWN), 0)
    shown = names[start : start + _SHOWN]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return printable(f"{where} holds {', '.join(shown) or 'nothing'}{more}")


def require_files(rows: Rows, splits: Mapping[str, Ints], data: DataConfig) -> None:
    """Raise DataError for listed files that are missing, or warn if damaged images are skipped."""
    assert isinstance(rows.where, Files)
    _require(rows, rows.where.files, data, splits)
    if rows.masks is not None:
        _require(rows, rows.masks, data)


def _require(
    rows: Rows, paths: PathList, data: DataConfig, splits: Mapping[str, Ints] | None = None
) -> None:
    """Report missing files; without `splits`, none may be skipped."""
    assert isinstance(rows.where, Files) and rows.places is not None
    folder = rows.where.folder
    if not (missing := _missing(folder, paths)):
        return
    shown = [f"{paths[row]} (row {rows.places.numbers[row]})" for row in missing[:_SHOWN]]
    shown += [f"{len(missing) - _SHOWN} more"] if len(missing) > _SHOWN else []
    found = f"{len(missing)} of {len(paths)} files are missing: {printable(', '.join(shown))}"
    found += f"; {nearest_names(folder, paths[missing[0]])}"
    if data.max_bad_fraction and splits:
        log.warning("%s; %s", found, check_command(data))
        return
    remedy = "correct the table, data.table.path, data.images or data.table.prefix"
    if splits and (share := _share_to_skip(len(paths), splits, missing)):
        remedy += f", or set data.max_bad_fraction={share}"
    raise DataError(f"{found}; {remedy}; {check_command(data)}")


def _missing(folder: str, paths: PathList) -> list[int]:
    """Returns the numbers of the paths without a file, ascending."""
    listed = _split(paths.text[:-1].tobytes().decode())
    there = _files_beside(folder, listed)
    return (~listed.is_in(there.implode())).arg_true().to_list()


def _share_to_skip(images: int, splits: Mapping[str, Ints], missing: list[int]) -> float | None:
    """Returns the largest `share_to_skip` of all splits; None also if many in a row are missing."""
    is_missing = np.zeros(images, bool)
    is_missing[missing] = True
    shares = list[float | None]()
    for lost in (is_missing[rows] for rows in splits.values()):
        if lost.any():
            # Lengths of runs between existing files; the last image is followed by the first.
            runs = np.diff(np.flatnonzero(~np.tile(lost, 2))) - 1
            too_long = not len(runs) or runs.max() > LONGEST_RUN
            shares.append(None if too_long else share_to_skip(int(lost.sum()), len(lost)))
    return max(filter(None, shares)) if all(shares) else None
