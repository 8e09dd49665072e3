"""Image files of any format without labels, for prediction."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from entry_point.data.sources.file_source import FileSource


class UnlabeledFiles(FileSource):
    """The given files, in the given order."""

    def __init__(self, paths: Sequence[Path]) -> None:
        super().__init__([str(path) for path in paths], [-1] * len(paths), [])
