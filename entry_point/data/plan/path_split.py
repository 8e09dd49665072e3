"""Chooses validation images by a hash of their paths."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from entry_point.data.plan.philox import philox, unit

VAL_FRACTION = 0.1
"""Of a dataset without splits, where nothing else is asked for."""
_SPLIT_STREAM = 41


def chosen_for_val(paths: Iterable[str], fraction: float) -> NDArray[np.bool_]:
    """Whether each image is in `val`: a function of its path alone.

    So it is the same on every machine, and adding images moves no other image.
    """
    return chosen_by_checksum(path_checksums(paths), fraction)


def path_checksums(paths: Iterable[str]) -> NDArray[np.uint32]:
    """The CRC-32 of each path's bytes."""
    checksums = [zlib.crc32(path.encode("utf-8", "surrogateescape")) for path in paths]
    return np.array(checksums, dtype=np.uint32)


def chosen_by_checksum(checksums: NDArray[np.uint32], fraction: float) -> NDArray[np.bool_]:
    """`chosen_for_val` of paths with these `path_checksums`."""
    words = philox((0, _SPLIT_STREAM), (checksums.astype(np.uint64), 0, 0, 0))
    return unit(words[0]) < fraction
