"""What packing did with every file of the source."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from entry_point.data.index import Index

_GROUPS_LISTED = 100


@dataclass
class SplitReport:
    """Counts of one split; `rejected` lists every file that is not in the data set."""

    files: int = 0
    how: Counter[str] = field(default_factory=Counter)
    kept_reasons: Counter[str] = field(default_factory=Counter)
    rejected: list[dict[str, str]] = field(default_factory=list)
    bytes_before: int = 0
    bytes_after: int = 0
    classes: Counter[str] = field(default_factory=Counter)

    def add(self, row: dict[str, Any], classes: list[str]) -> None:
        self.files += 1
        if "rejected" in row:
            self.rejected.append({"path": row["path"], "reason": row["rejected"]})
            return
        self.how[row["how"]] += 1
        if row["reason"]:
            self.kept_reasons[row["reason"]] += 1
        self.bytes_before += row["source_bytes"]
        self.bytes_after += row["length"]
        self.classes[classes[row["label"]]] += 1

    def lines(self, split: str) -> list[str]:
        done = ", ".join(f"{count} {how}" for how, count in sorted(self.how.items()))
        change = 100 * (self.bytes_after / max(1, self.bytes_before) - 1)
        least, most = min(self.classes.values(), default=0), max(self.classes.values(), default=0)
        return [
            f"{split}: {self.files} files: {done or 'none packed'}, {len(self.rejected)} rejected",
            f"  {self.bytes_before / 1e6:.1f} MB became {self.bytes_after / 1e6:.1f} MB "
            f"({change:+.1f} %); {len(self.classes)} classes of {least} to {most} images",
            *(f"  kept: {count} because {why}" for why, count in self.kept_reasons.most_common(5)),
            *(f"  rejected: {file['path']}: {file['reason']}" for file in self.rejected[:5]),
        ]


def find_duplicates(indexes: dict[str, Index]) -> dict[str, Any]:
    """Samples whose source files had the same bytes, over all splits."""
    digests = np.concatenate([index["digest"] for index in indexes.values()])
    _, group, counts = np.unique(digests, return_inverse=True, return_counts=True)
    groups: dict[int, list[str]] = {}
    for place in np.flatnonzero(counts[group] > 1):
        if group[place] in groups or len(groups) < _GROUPS_LISTED:
            groups.setdefault(group[place], []).append(_name(indexes, int(place)))
    files = int((counts - 1).sum())
    return {"files": files, "examples": sorted(sorted(names) for names in groups.values())}


def _name(indexes: dict[str, Index], place: int) -> str:
    """<split>/<key> of a row in all splits' rows together."""
    for split, index in indexes.items():
        if place < len(index):
            return f"{split}/{index.key(place)}"
        place -= len(index)
    raise IndexError(place)


def write_report(
    file: Path, splits: dict[str, SplitReport], duplicates: dict[str, Any], quality: int
) -> None:
    content = {
        "splits": {split: vars(report) for split, report in splits.items()},
        "duplicates": duplicates,
        "quality_of_converted": quality,
    }
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False))
