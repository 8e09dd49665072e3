"""report.json: what packing did with every file of the source."""

from __future__ import annotations

import json
import logging
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from entry_point.contract.printable import printable
from entry_point.contract.whole_file import write_text
from entry_point.data.errors import DataError
from entry_point.data.packing.contents import Contents
from entry_point.data.sources.file_bytes import read_bytes
from entry_point.data.sources.label_kind import Kind, names_of

REPORT = "report.json"

log = logging.getLogger(__name__)


@dataclass
class SplitReport:
    """Counts of one split."""

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

    def add(self, row: dict[str, Any], contents: Contents) -> None:
        self.files += 1
        if "rejected" in row:
            self.rejected.append({"path": row["path"], "reason": row["rejected"]})
            return
        self.how[row["how"]] += 1
        if row["note"]:
            self.notes[f"{row['how']}: {row['note']}"] += 1
        self.warnings.update(row["warnings"])
        self.bytes_before += row["source_bytes"]
        self.bytes_after += row["length"]
        self.side_index_bytes += len(b64decode(row["index"]))
        self.classes.update(names_of(contents.kind, contents.classes, row["label"]))

    def add_part(self, part: dict[str, Any]) -> None:
        """Add the same split of a part, as read from its report."""
        for name, value in vars(self).items():
            if isinstance(value, Counter):
                value.update(part[name])
            else:
                setattr(self, name, value + part[name])

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
    """The content of report.json, and the class names."""

    classes: list[str]
    kind: Kind = "class"
    splits: dict[str, SplitReport] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    """Files and folders of the source beside its splits."""
    quality_of_converted: list[int] = field(default_factory=list)
    """JPEG quality of converted images; after a merge, the qualities of all parts."""
    duplicates: dict[str, Any] = field(default_factory=dict)

    def split(self, name: str) -> SplitReport:
        """The split's report; a new one counts 0 images for every class."""
        names = [] if self.kind == "numbers" else self.classes
        empty = SplitReport(classes=Counter(dict.fromkeys(names, 0)))
        return self.splits.setdefault(name, empty)

    def add_part(self, folder: Path) -> None:
        """Add the report of the part in `folder`. Raises DataError if it cannot be read."""
        try:
            part = json.loads(read_bytes(folder / REPORT).numpy().tobytes())
            for name, values in part["splits"].items():
                self.split(name).add_part(values)
            for name in ("left_out", "quality_of_converted"):
                setattr(self, name, sorted({*getattr(self, name), *part[name]}))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{folder / REPORT} cannot be read ({error}): copy it again") from error

    def finish(self, folder: Path, output_format: str, is_part: bool = False) -> None:
        """Write report.json and log a summary.

        Raises DataError if training could not read the dataset, unless it `is_part` of another.
        """
        splits = {name: vars(report) for name, report in self.splits.items()}
        content = {
            key: value for key, value in vars(self).items() if key not in ("classes", "kind")
        }
        text = json.dumps(content | {"splits": splits}, indent=1, ensure_ascii=False)
        write_text(folder / REPORT, text)
        for line in self._lines():
            log.info("%s", printable(line))
        if not is_part:
            for name, report in self.splits.items():
                _require_images(name, report, output_format)

    def _lines(self) -> Iterator[str]:
        for name, report in self.splits.items():
            yield from report.lines(name)
        yield f"duplicate files: {self.duplicates['files']} (same bytes as another file)"
        yield f"{REPORT} lists all rejected files and examples of duplicates"


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
