"""Samples that occur twice: by the bytes of their source file, or by their key."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entry_point.data.errors import DataError
from entry_point.data.sources.packed.index import read_digests, read_keys

_GROUPS_LISTED = 100


def find_duplicates(folders: dict[str, Path]) -> dict[str, Any]:
    """Samples of all splits whose source files have the same bytes, as report.json lists them.

    `folders` holds the folder of each split's index. Takes 16 bytes of memory per sample.
    """
    digests = np.concatenate([read_digests(folder) for folder in folders.values()])
    repeated = _repeated(digests)
    listed = np.unique(repeated)[:_GROUPS_LISTED].tolist()
    groups: dict[int, list[str]] = {digest: [] for digest in listed}
    for split, folder in folders.items() if groups else ():
        for key, digest in read_keys(folder):
            if digest in groups:
                groups[digest].append(f"{split}/{key}")
    return {"files": len(repeated), "examples": sorted(sorted(keys) for keys in groups.values())}


def require_distinct_keys(folder: Path) -> None:
    """Raise DataError if a key occurs twice in the split's index in `folder`.

    Takes 10 bytes of memory per sample: only keys whose hashes repeat are compared.
    """
    suspects = set(_repeated(np.fromiter(map(_hash, _keys(folder)), np.uint64)).tolist())
    keys = sorted(key for key in _keys(folder) if _hash(key) in suspects) if suspects else []
    repeated = [key for key, following in pairwise(keys) if key == following]
    if repeated:
        raise DataError(
            f"{len(repeated)} keys of {folder.name} are in more than one part, for example "
            f"{repeated[0]}: pack different files into each part"
        )


def _repeated(values: NDArray[Any]) -> NDArray[Any]:
    """Each value as often as it occurs after its first time; sorts `values`."""
    values.sort()
    return values[1:][values[1:] == values[:-1]]


def _keys(folder: Path) -> Iterator[str]:
    return (key for key, _ in read_keys(folder))


def _hash(key: str) -> int:
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "little")
