"""report.json: what packing did with the files of the source."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from entry_point.contract.printable import printable
from entry_point.contract.whole_file import whole_file
from entry_point.data.errors import DataError
from entry_point.data.packing.encode import Encoded
from entry_point.data.packing.scan import Contents
from entry_point.data.sources.index_file import IndexFile

_DUPLICATES_LISTED = 100

log = logging.getLogger(__name__)


@dataclass
class Counts:
    """What became of the source files of a shard, or of a split."""

    how: Counter[str] = field(default_factory=Counter)
    """Images by `Encoded.how`."""
    notes: Counter[str] = field(default_factory=Counter)
    """Why images have no side index, what converted ones lost, and what libjpeg warns about."""
    rejected: dict[str, str] = field(default_factory=dict)
    """Path and reason of every file that was not packed."""
    bytes_before: int = 0

    def add(self, image: Encoded, source_bytes: int) -> None:
        self.how[image.how] += 1
        notes = filter(None, (image.note, *image.warnings))
        self.notes.update(f"{image.how}: {note}" for note in notes)
        self.bytes_before += source_bytes

    def add_shard(self, shard: Counts) -> None:
        self.how.update(shard.how)
        self.notes.update(shard.notes)
        self.rejected |= shard.rejected
        self.bytes_before += shard.bytes_before


@dataclass(frozen=True)
class Report:
    """What a part of the dataset holds."""

    contents: Contents
    splits: Mapping[str, tuple[Counts, IndexFile | None]]
    """The counts and the index of each split; no index without images."""

    def write(self, file: Path) -> None:
        """Write the report and log a summary."""
        splits = {split: self._split(*made) for split, made in self.splits.items()}
        for split, content in splits.items():
            for line in _summary(split, content):
                log.info("%s", printable(line))
        indexes = [(split, index) for split, (_, index) in self.splits.items() if index]
        files, examples = find_duplicates(indexes)
        content = {"splits": splits, "duplicates": {"files": files, "examples": examples}}
        with whole_file(file) as opened:
            opened.write(json.dumps(content, indent=1, ensure_ascii=False).encode())
        log.info("duplicate files: %d (same bytes as another file)", files)
        log.info("%s lists all rejected files and examples of duplicates", file.name)

    def _split(self, counts: Counts, index: IndexFile | None) -> dict[str, Any]:
        after = 0 if index is None else int(index["length"].sum())
        return vars(counts) | {"bytes_after": after, "classes": self._images_by_class(index)}

    def _images_by_class(self, index: IndexFile | None) -> dict[str, int]:
        """Images of each class or label; empty for numbers."""
        if self.contents.kind == "numbers":
            return {}
        labels = np.empty(0, np.int32) if index is None else index["label"]
        counts = np.bincount(labels, minlength=len(self.contents.classes)).tolist()
        return dict(zip(self.contents.classes, counts, strict=True))

    def require_images(self) -> None:
        """Raise DataError for a split without images; warn of classes without."""
        for split, (counts, index) in self.splits.items():
            classes = self._images_by_class(index)
            empty = [name for name, count in classes.items() if not count]
            if counts.how and not empty:
                continue
            message = f"{split}: no image can be used"
            if empty:
                message = f"{split}: {len(empty)} of {len(classes)} classes have no usable image "
                message += f"({', '.join(empty[:5])})"
            for path, reason in islice(counts.rejected.items(), 1):
                message += f"; the first rejected file is {path}: {reason}"
            if not counts.how:
                raise DataError(message)
            log.warning("%s", printable(message))


def _summary(split: str, report: dict[str, Any]) -> Iterator[str]:
    how, rejected, classes = report["how"], report["rejected"], report["classes"]
    before, after = report["bytes_before"], report["bytes_after"]
    done = ", ".join(f"{count} {name}" for name, count in sorted(how.items())) or "none packed"
    yield f"{split}: {sum(how.values()) + len(rejected)} files: {done}, {len(rejected)} rejected"
    change = 100 * (after / max(1, before) - 1)
    least, most = min(classes.values(), default=0), max(classes.values(), default=0)
    yield (
        f"  {before / 1e6:.1f} MB before, {after / 1e6:.1f} MB after ({change:+.1f} %); "
        f"{len(classes)} classes with {least} to {most} images"
    )
    for note, count in Counter(report["notes"]).most_common(5):
        yield f"  {count} {note}"
    for path, reason in islice(rejected.items(), 5):
        yield f"  rejected: {path}: {reason}"


def find_duplicates(indexes: Sequence[tuple[str, IndexFile]]) -> tuple[int, list[list[str]]]:
    """How many source files have the bytes of another, and up to 100 groups of these.

    `indexes` are those of splits. Takes 16 bytes of memory per image.
    """
    digests = [index["digest"] for _, index in indexes]
    every = np.sort(np.concatenate([np.empty(0, np.uint64), *digests]))
    repeated = every[1:][every[1:] == every[:-1]]
    listed = np.unique(repeated)[:_DUPLICATES_LISTED]
    groups: dict[int, list[str]] = {digest: [] for digest in listed.tolist()}
    for split, index in indexes:
        for row in np.flatnonzero(np.isin(index["digest"], listed)).tolist():
            key = index.key(row).decode("utf-8", "backslashreplace")
            groups[int(index["digest"][row])].append(f"{split}/{key}")
    return len(repeated), sorted(sorted(keys) for keys in groups.values())
