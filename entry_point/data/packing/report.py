"""report.json: what packing did with every file of the source."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from entry_point.config.packing_config import Part
from entry_point.contract.printable import printable
from entry_point.contract.whole_file import write_text
from entry_point.data.errors import DataError
from entry_point.data.packing.encode import Encoded
from entry_point.data.sources.index_file import IndexFile

_GROUPS_LISTED = 100

log = logging.getLogger(__name__)


@dataclass
class SplitReport:
    """Counts of one split, or of one of its shards."""

    files: int = 0
    how: Counter[str] = field(default_factory=Counter)
    """Images by `Encoded.how`."""
    notes: Counter[str] = field(default_factory=Counter)
    """Why images were kept without an index, and what converted ones lost."""
    warnings: Counter[str] = field(default_factory=Counter)
    """Packed JPEGs by what libjpeg warns about without any effect on their pixels."""
    rejected: list[dict[str, str]] = field(default_factory=list)
    """Path and reason of every file that was not packed."""
    bytes_before: int = 0
    bytes_after: int = 0
    side_index_bytes: int = 0
    classes: Counter[str] = field(default_factory=Counter)
    """Images of each class or label; 0 if all its files were rejected. Empty for numbers."""

    def reject(self, path: str, reason: str) -> None:
        self.files += 1
        self.rejected.append({"path": path, "reason": reason})

    def add(self, encoded: Encoded, source_bytes: int, classes: list[str]) -> None:
        """Count an image, which has these classes or labels."""
        self.files += 1
        self.how[encoded.how] += 1
        if encoded.note:
            self.notes[f"{encoded.how}: {encoded.note}"] += 1
        self.warnings.update(encoded.warnings)
        self.bytes_before += source_bytes
        self.bytes_after += len(encoded.data)
        self.side_index_bytes += len(encoded.index)
        self.classes.update(classes)

    def add_shard(self, shard: Mapping[str, Any]) -> None:
        """Add the counts of a shard, as `vars` gives them."""
        for name, value in vars(self).items():
            if isinstance(value, Counter):
                value.update(shard[name])
            else:
                setattr(self, name, value + shard[name])

    def lines(self, split: str) -> list[str]:
        done = ", ".join(f"{count} {how}" for how, count in sorted(self.how.items()))
        change = 100 * (self.bytes_after / max(1, self.bytes_before) - 1)
        least, most = min(self.classes.values(), default=0), max(self.classes.values(), default=0)
        return [
            f"{split}: {self.files} files: {done or 'none packed'}, {len(self.rejected)} rejected",
            f"  {self.bytes_before / 1e6:.1f} MB before, {self.bytes_after / 1e6:.1f} MB after "
            f"({change:+.1f} %), {self.side_index_bytes / 1e6:.1f} MB of side indexes; "
            f"{len(self.classes)} classes with {least} to {most} images",
            *(f"  {count} {note}" for note, count in self.notes.most_common(5)),
            *(f"  {count} with a harmless header: {text}" for text, count in self.warnings.items()),
            *(f"  rejected: {file['path']}: {file['reason']}" for file in self.rejected[:5]),
        ]


@dataclass
class Report:
    """The content of report.json."""

    splits: dict[str, SplitReport] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    """Files and folders of the source beside its splits."""
    duplicates: dict[str, Any] = field(default_factory=dict)

    def finish(self, folder: Path, part: Part, output_format: str) -> None:
        """Write the report of a part and log a summary.

        Raises DataError if training could not read the dataset, unless it has other parts.
        """
        name = part.name("report", ".json")
        splits = {split: vars(report) for split, report in self.splits.items()}
        content = json.dumps(vars(self) | {"splits": splits}, indent=1, ensure_ascii=False)
        write_text(folder / name, content)
        for line in self._lines(name):
            log.info("%s", printable(line))
        for split, report in self.splits.items() if part.count == 1 else ():
            _require_images(split, report, output_format)

    def _lines(self, name: str) -> Iterator[str]:
        for split, report in self.splits.items():
            yield from report.lines(split)
        yield f"duplicate files: {self.duplicates['files']} (same bytes as another file)"
        yield f"{name} lists all rejected files and examples of duplicates"


def find_duplicates(indexes: list[tuple[str, IndexFile]]) -> dict[str, Any]:
    """The images whose source files have the same bytes, by the indexes of splits.

    Takes 16 bytes of memory per image.
    """
    digests = [index["digest"] for _, index in indexes]
    every = np.sort(np.concatenate([np.empty(0, np.uint64), *digests]))
    repeated = every[1:][every[1:] == every[:-1]]
    listed = np.unique(repeated)[:_GROUPS_LISTED]
    groups: dict[int, list[str]] = {digest: [] for digest in listed.tolist()}
    for split, index in indexes:
        for row in np.flatnonzero(np.isin(index["digest"], listed)).tolist():
            key = index.key(row).decode("utf-8", "backslashreplace")
            groups[int(index["digest"][row])].append(f"{split}/{key}")
    return {"files": len(repeated), "examples": sorted(sorted(keys) for keys in groups.values())}


def _require_images(split: str, report: SplitReport, output_format: str) -> None:
    """Raise DataError for a split without images; for plain files, also for an empty class.

    Shards only need a warning for an empty class: their classes do not come from folders.
    """
    empty = [label for label, count in report.classes.items() if not count]
    if not empty and report.how:
        return
    message = f"{split}: no image can be used"
    if empty:
        message = f"{split}: {len(empty)} of {len(report.classes)} classes have no usable image "
        message += f"({', '.join(empty[:5])})"
    for file in report.rejected[:1]:
        message += f"; the first rejected file is {file['path']}: {file['reason']}"
    if not report.how or output_format == "folder":
        raise DataError(message)
    log.warning("%s", printable(message))
