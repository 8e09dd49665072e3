"""The work folder beside the output: finished shards and their records, kept for resuming."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entry_point.contract.whole_file import write_text

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ShardRecord:
    """What became of one shard's source files; written once the shard is complete."""

    made: dict[str, int]
    """Files written, relative to the split's folder, and their sizes in bytes."""
    rows: list[dict[str, Any]]
    """For each source file, the row that `ShardPacker` made."""

    def write(self, file: Path) -> None:
        write_text(file, json.dumps([self.made, self.rows]))

    @staticmethod
    def read(file: Path) -> ShardRecord:
        return ShardRecord(*json.loads(file.read_text("utf-8")))

    def is_intact(self, folder: Path) -> bool:
        """Whether every file that was written still exists with its size."""
        files = ((folder / name, size) for name, size in self.made.items())
        return all(file.is_file() and file.stat().st_size == size for file, size in files)


@dataclass(frozen=True)
class WorkFolder:
    root: Path

    @property
    def data(self) -> Path:
        """The folder that becomes the output."""
        return self.root / "data"

    def record(self, split: str, number: int) -> Path:
        return self.root / "records" / f"{split}-{number:06d}.json"

    def is_done(self, split: str, number: int) -> bool:
        try:
            return ShardRecord.read(self.record(split, number)).is_intact(self.data / split)
        except (FileNotFoundError, ValueError):  # not written yet, or truncated
            return False

    def prepare(self, fingerprint: str, splits: Iterable[str]) -> None:
        """Create the folders; remove the work of a run with another fingerprint."""
        plan = self.root / "plan"
        if not plan.is_file() or plan.read_text("utf-8") != fingerprint:
            if self.root.exists():
                log.info("removing %s: its run had other files or options", self.root)
                shutil.rmtree(self.root)
            self.root.mkdir()
            write_text(plan, fingerprint)
        for split in splits:
            (self.data / split).mkdir(parents=True, exist_ok=True)
        (self.root / "records").mkdir(exist_ok=True)
