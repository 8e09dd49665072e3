"""What packing did with every file of the source."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from entry_point.data.index import read_column, read_keys

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


def write_report(
    file: Path, splits: dict[str, SplitReport], duplicates: dict[str, Any], quality: int
) -> None:
    content = {
        "splits": {split: vars(report) for split, report in splits.items()},
        "duplicates": duplicates,
        "quality_of_converted": quality,
    }
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False))
