"""What one part of the check leaves: promises that hold or not, and rows of a table, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass
class Check:
    """One promise; `holds` is None where this machine cannot tell."""

    promise: str
    holds: bool | None
    found: str


@dataclass
class Part:
    """The findings of one part."""

    checks: list[Check] = field(default_factory=list)
    rows: list[dict[str, float | str]] = field(default_factory=list)
    """Measurements of single jobs."""
    facts: dict[str, str] = field(default_factory=dict)
    """About the machine."""

    def add(self, promise: str, holds: bool | None, found: str) -> None:
        self.checks.append(Check(promise, holds, found))


def write_part(part: Part, folder: Path, number: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(asdict(part), indent=1)
    (folder / f"part{number}.json").write_text(text, encoding="utf-8")


def read_parts(folder: Path) -> dict[int, Part]:
    """The parts that have run, by number."""
    parts = {}
    for path in sorted(folder.glob("part[0-9].json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        checks = [Check(**check) for check in found["checks"]]
        parts[int(path.stem[-1])] = Part(checks, found["rows"], found["facts"])
    return parts
