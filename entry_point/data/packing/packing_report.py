"""What packing did with every file of the source."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from entry_point.contract.whole_file import write_text
from entry_point.data.errors import DataError
from entry_point.data.sources.index import read_column, read_keys

REPORT = "report.json"
_GROUPS_LISTED = 100

log = logging.getLogger(__name__)


@dataclass
class SplitReport:
    """Counts of one split; `rejected` lists every file that is not in the data set."""

    files: int = 0
    how: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    """Why files were kept as they were, and what converted ones have lost."""
    rejected: list[dict[str, str]] = field(default_factory=list)
    bytes_before: int = 0
    bytes_after: int = 0
    classes: Counter[str] = field(default_factory=Counter)
    """Images of each class, 0 for one of which all were rejected."""

    def add(self, row: dict[str, Any], classes: list[str]) -> None:
        self.files += 1
        if "rejected" in row:
            self.rejected.append({"path": row["path"], "reason": row["rejected"]})
            return
        self.how[row["how"]] += 1
        if row["note"]:
            self.notes[f"{row['how']}: {row['note']}"] += 1
        self.bytes_before += row["source_bytes"]
        self.bytes_after += row["length"]
        self.classes[classes[row["label"]]] += 1

    def unite(self, other: SplitReport) -> None:
        """Add what another part reports of its files."""
        self.files += other.files
        self.bytes_before += other.bytes_before
        self.bytes_after += other.bytes_after
        self.rejected += other.rejected
        for mine, theirs in ((self.how, other.how), (self.notes, other.notes)):
            mine.update(theirs)
        self.classes.update(other.classes)

    def lines(self, split: str) -> list[str]:
        done = ", ".join(f"{count} {how}" for how, count in sorted(self.how.items()))
        change = 100 * (self.bytes_after / max(1, self.bytes_before) - 1)
        least, most = min(self.classes.values(), default=0), max(self.classes.values(), default=0)
        return [
            f"{split}: {self.files} files: {done or 'none packed'}, {len(self.rejected)} rejected",
            f"  {self.bytes_before / 1e6:.1f} MB became {self.bytes_after / 1e6:.1f} MB "
            f"({change:+.1f} %); {len(self.classes)} classes of {least} to {most} images",
            *(f"  {count} {note}" for note, count in self.notes.most_common(5)),
            *(f"  rejected: {file['path']}: {file['reason']}" for file in self.rejected[:5]),
        ]


@dataclass
class Report:
    """All of report.json."""

    classes: list[str]
    splits: dict[str, SplitReport] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    """What the source holds beside its splits."""
    quality_of_converted: list[int] = field(default_factory=list)
    """One, or those of the parts."""
    duplicates: dict[str, Any] = field(default_factory=dict)

    def split(self, name: str) -> SplitReport:
        """The split's report, with all classes at 0 where it is new."""
        empty = SplitReport(classes=Counter(dict.fromkeys(self.classes, 0)))
        return self.splits.setdefault(name, empty)

    def lines(self) -> Iterator[str]:
        for name, report in self.splits.items():
            yield from report.lines(name)
        yield f"{self.duplicates['files']} files repeat the bytes of another; all of it in {REPORT}"

    def require_readable(self, output_format: str) -> None:
        """Warns of classes without an image; raises DataError where nothing could read the rest.

        That is a split without any, and plain files of which a class folder is missing.
        """
        for name, report in self.splits.items():
            empty = [label for label, count in report.classes.items() if not count]
            if not empty:
                continue
            first = report.rejected[0] if report.rejected else {"path": name, "reason": "empty"}
            message = (
                f"{name}: all files of {len(empty)} of {len(report.classes)} classes are rejected "
                f"({', '.join(empty[:5])}); the first file is {first['path']}: {first['reason']}"
            )
            if len(empty) == len(report.classes) or output_format == "folder":
                raise DataError(message)
            log.warning("%s", message)

    def write(self, folder: Path) -> None:
        splits = {name: vars(report) for name, report in self.splits.items()}
        content = {key: value for key, value in vars(self).items() if key != "classes"}
        text = json.dumps(content | {"splits": splits}, indent=1, ensure_ascii=False)
        write_text(folder / REPORT, text)

    def unite(self, folder: Path) -> None:
        """Add the report of a part. Raises DataError."""
        try:
            content = json.loads((folder / REPORT).read_text("utf-8"))
            for name, values in content["splits"].items():
                counters = {key: Counter(values[key]) for key in ("how", "notes", "classes")}
                self.split(name).unite(SplitReport(**values | counters))
            self.left_out = sorted({*self.left_out, *content["left_out"]})
            qualities = {*self.quality_of_converted, *content["quality_of_converted"]}
            self.quality_of_converted = sorted(qualities)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{folder / REPORT} cannot be read ({error}): copy it again") from error


def find_duplicates(folders: dict[str, Path]) -> dict[str, Any]:
    """Samples whose source files had the same bytes, over all splits.

    Takes 16 bytes of memory per sample; `folders` are those of the splits' indexes.
    """
    digests = np.concatenate([read_column(folder, "digest") for folder in folders.values()])
    digests.sort()
    again = digests[1:][digests[1:] == digests[:-1]]
    listed = set(np.unique(again)[:_GROUPS_LISTED].tolist())
    groups: dict[int, list[str]] = {digest: [] for digest in listed}
    if listed:
        for split, folder in folders.items():
            for key, digest in read_keys(folder, "digest"):
                if digest in listed:
                    groups[digest].append(f"{split}/{key}")
    return {"files": len(again), "examples": sorted(sorted(names) for names in groups.values())}
