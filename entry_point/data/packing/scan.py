"""Decides which images go into which shards, and under which keys."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from entry_point.data.errors import DataError
from entry_point.data.plan.philox import permutation
from entry_point.data.sources.source import Source

_SEED, _SHUFFLE_STREAM = 0, 21


class Listing:
    """The images of a split, shuffled and divided into shards; uses about 180 bytes per image."""

    def __init__(self, source: Source, shard_bytes: float) -> None:
        """List the images. Raises DataError if two files have the same key."""
        self.source = source
        status = [source.status(i) for i in range(len(source))]
        self._bytes, self._changed = np.array(status, np.int64).reshape(-1, 2).T.copy()
        self._shared: set[str] = set()
        """Keys that several files would share, such as `orange` of orange.jpg and orange.tiff."""
        self._shared = self._repeated()
        if self._shared and (again := self._repeated()):
            key = min(again)
            images = (i for i in range(len(source)) if self.key(i) == key)
            first, second, *_ = map(self.name, images)
            raise DataError(f"{first} and {second} share the key {key}: rename one")
        self.shards = self._cut(shard_bytes)
        """For each shard, the numbers of its images in the source."""

    def name(self, i: int) -> str:
        """Returns CLASS/..., or the path in the table, with bytes that are not UTF-8 escaped."""
        return self.source.name(i).encode("utf-8", "backslashreplace").decode()

    def key(self, i: int) -> str:
        """Returns the name of the image's members in the shard: the file's name, without its suffix
        unless other files would share it.

        Readers of tar shards treat everything after the first dot of a name as the member's type.
        """
        path = PurePosixPath(self.name(i))
        key = str(path.with_name(path.stem.replace(".", "_")))
        return str(path.with_name(path.name.replace(".", "_"))) if key in self._shared else key

    def label(self, i: int) -> Any:
        """Returns the number of the class, the ascending numbers of the labels, or a number for
        each target."""
        label = self.source.labels[i]
        return (label.nonzero()[:, 0] if self.source.kind == "labels" else label).tolist()

    def add_to(self, files: Any, times: Any) -> None:
        """Add files and shards to the hash `files`, and modification times to `times`."""
        for number, shard in enumerate(self.shards):
            times.update(self._changed[shard].tobytes())
            for i in shard:
                described = number, self.name(i), self.label(i), int(self._bytes[i])
                files.update(json.dumps(described).encode())

    def _repeated(self) -> set[str]:
        keys = Counter(map(self.key, range(len(self.source))))
        return {key for key, count in keys.items() if count > 1}

    def _cut(self, shard_bytes: float) -> list[list[int]]:
        """Divide the images into shards of up to `shard_bytes` source bytes, or of one image."""
        order = permutation((_SEED, _SHUFFLE_STREAM), len(self.source), 0)
        shards: list[list[int]] = []
        filled = 0
        for i in self.source.in_reading_order(order).tolist():
            size = int(self._bytes[i])
            if not shards or filled + size > shard_bytes:
                shards.append([])
                filled = 0
            shards[-1].append(i)
            filled += size
        return shards
