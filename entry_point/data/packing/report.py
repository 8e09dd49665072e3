"""What packing did with every file of the source."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_DUPLICATES_LISTED = 100


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


def find_duplicates(indexes: dict[str, pa.Table]) -> dict[str, Any]:
    """Samples whose source files had the same bytes, over all splits."""
    tables = [
        table.select(["key", "digest"]).append_column("split", pa.array([split] * len(table)))
        for split, table in indexes.items()
    ]
    together = pa.concat_tables(tables)
    counts = together.group_by("digest").aggregate([("digest", "count")])
    repeated = counts.filter(pc.greater(counts["digest_count"], 1))["digest"]
    copies = together.filter(pc.is_in(together["digest"], repeated.combine_chunks()))
    groups: dict[bytes, list[str]] = {}
    for row in copies.sort_by("digest").slice(0, 4 * _DUPLICATES_LISTED).to_pylist():
        groups.setdefault(row["digest"], []).append(f"{row['split']}/{row['key']}")
    return {
        "files": len(copies) - len(repeated),
        "examples": [sorted(group) for group in list(groups.values())[:_DUPLICATES_LISTED]],
    }


def write_report(
    file: Path, splits: dict[str, SplitReport], duplicates: dict[str, Any], quality: int
) -> None:
    content = {
        "splits": {split: vars(report) for split, report in splits.items()},
        "duplicates": duplicates,
        "quality_of_converted": quality,
    }
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False))
