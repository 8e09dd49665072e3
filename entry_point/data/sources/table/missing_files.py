"""Finds the files of a table that do not exist, without a system call per file."""

from __future__ import annotations

import os
import time
from operator import attrgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from entry_point.data.sources.table.path_list import PathList, decoded

_FEW = 8
SECONDS = 30.0
"""Listing a slow network mount may take hours: what is not checked by then is found when read."""


def find_missing(
    folder: str, paths: PathList, rows: NDArray[np.bool_], seconds: float = SECONDS
) -> tuple[NDArray[np.int64], int]:
    """Those of `rows` whose file does not exist, ascending, and how many were checked in time.

    Lists each folder once. Keeps 12 bytes per row and 8 per file of the folder at hand.
    """
    hashes, parents, parent_of = _parents(paths)
    order = np.flatnonzero(rows)
    order = order[np.argsort(parent_of[order], kind="stable")]
    cuts = np.flatnonzero(np.diff(parent_of[order])) + 1
    end, checked = time.monotonic() + seconds, 0
    missing = [np.empty(0, np.int64)]
    for of_parent in np.split(order, cuts) if len(order) else ():
        if time.monotonic() > end:
            break
        parent = parents[parent_of[of_parent[0]]]
        if len(of_parent) <= _FEW:
            there = np.array([Path(folder, paths[row]).exists() for row in of_parent.tolist()])
        else:
            there = _contains(_hashes_in(folder, parent), hashes[of_parent])
        missing.append(of_parent[~there])
        checked += len(of_parent)
    return np.sort(np.concatenate(missing)), checked


def _parents(paths: PathList) -> tuple[NDArray[np.int64], list[str], NDArray[np.int32]]:
    """The hash of each path, all folders (empty, or ending in a slash), and each path's folder."""
    hashes, parent_of = np.empty(len(paths), np.int64), np.empty(len(paths), np.int32)
    parents: dict[str, int] = {}
    done = 0
    for chunk in map(decoded, paths.chunks()):
        here = slice(done, done + len(chunk))
        hashes[here] = list(map(hash, chunk))
        folders = [path.rpartition("/")[0] for path in chunk]
        for folder in dict.fromkeys(folders):
            parents.setdefault(folder, len(parents))
        parent_of[here] = list(map(parents.__getitem__, folders))
        done += len(chunk)
    return hashes, [folder and f"{folder}/" for folder in parents], parent_of


def _contains(found: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of `wanted` are in `found`, which this sorts; np.isin takes five times as long."""
    found.sort()
    places = np.searchsorted(found, wanted)
    return np.append(found, 0)[places] == wanted if len(found) else np.zeros(len(wanted), bool)


def _hashes_in(folder: str, parent: str) -> NDArray[np.int64]:
    """Hashes of the paths in a folder; none if it does not exist."""
    try:
        with os.scandir(f"{folder}/{parent}") as entries:
            names = map(attrgetter("name"), entries)
            return np.fromiter(map(hash, map(parent.__add__, names)), np.int64)
    except (FileNotFoundError, NotADirectoryError):
        return np.empty(0, np.int64)
