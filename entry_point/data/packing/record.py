"""What became of one shard's files: written when they are done, to go on from after a kill."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entry_point.contract.whole_file import write_text


@dataclass(frozen=True)
class Record:
    made: dict[str, int]
    """Files written, relative to the split's folder, and their bytes."""
    rows: list[dict[str, Any]]
    """Of each source file: its index row with a few words more, or why it was rejected."""

    def write(self, file: Path) -> None:
        write_text(file, json.dumps([self.made, self.rows]))

    @staticmethod
    def read(file: Path) -> Record:
        return Record(*json.loads(file.read_text("utf-8")))

    def holds(self, folder: Path) -> bool:
        """Whether all that was made is still there."""
        return all(_size(folder / name) == size for name, size in self.made.items())


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else -1
