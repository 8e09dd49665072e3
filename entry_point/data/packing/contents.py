"""What there is to pack: a folder of splits and classes, or the rows of a table."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from entry_point.config.config_errors import ConfigError
from entry_point.config.packing_config import OptimizeConfig
from entry_point.config.table_config import TableConfig
from entry_point.data.packing.scan_source import (
    Entry,
    entry_of,
    list_classes,
    list_left_out,
    scan_split,
)
from entry_point.data.plan.path_split import chosen_for_val
from entry_point.data.sources.class_folders import existing_splits, layout_of, require_folder
from entry_point.data.sources.dataset_description import SPLITS
from entry_point.data.sources.formats import is_table
from entry_point.data.sources.label_kind import Kind

log = logging.getLogger(__name__)


class Contents(Protocol):
    """The files to pack, and their labels."""

    root: Path
    """Folder that the entries' paths start from."""
    classes: list[str]
    kind: Kind
    splits: list[str]
    left_out: list[str]
    """Files and folders of the source that are in no split."""

    def entries(self, split: str) -> Iterator[Entry]: ...


def contents_of(source: Path, options: OptimizeConfig) -> Contents:
    """Raises DataError and ConfigError for a source that cannot be packed."""
    return (TableContents if is_table(source) else FolderContents)(source, options)


class FolderContents:
    """A folder of splits and classes, or of classes; see `FolderSource` for `val_fraction`."""

    kind: Kind = "class"

    def __init__(self, source: Path, options: OptimizeConfig) -> None:
        if options.images is not None or options.table != TableConfig():
            key = "table" if options.images is None else "images"
            raise ConfigError(key, must=f"needs a table as source, not the folder {source}")
        require_folder("source", source)
        self.root, self._layout = source, layout_of(source, options.val_fraction)
        self.classes = list_classes(source, options.classes)
        divided = self._layout.fraction is not None
        self.splits = list(SPLITS) if divided else existing_splits(source)
        self.left_out = list_left_out(source)
        self._all_classes = options.classes is None
        if line := self._layout.describe(source):
            log.info("%s", line)

    def entries(self, split: str) -> Iterator[Entry]:
        folder, fraction = self._layout.folders[split], self._layout.fraction
        found = scan_split(self.root, folder, self.classes, all_classes=self._all_classes)
        for entry in found:
            if fraction is not None:
                path = entry.path.removeprefix(f"{folder}/")
                if chosen_for_val([path], fraction)[0] != (split == "val"):
                    continue
            yield entry


class TableContents:
    """The rows of a table, in its order."""

    def __init__(self, source: Path, options: OptimizeConfig) -> None:
        if options.output_format == "folder":
            must = "needs a folder as source: files in class folders cannot hold a table's labels"
            raise ConfigError("output_format", "folder", must)
        if options.classes is not None:
            raise ConfigError("classes", options.classes, "needs a folder as source")
        from entry_point.data.sources.table import TableRequest, read_table

        images = Path(options.images) if options.images else None
        request = TableRequest(source, images, options.table, options.val_fraction, "table")
        self._table = read_table(request)
        self.root = Path(self._table.folder)
        self.classes, self.kind = self._table.labels.names, self._table.labels.kind
        self.splits, self.left_out = list(SPLITS), list[str]()

    def entries(self, split: str) -> Iterator[Entry]:
        for row in self._table.rows(split).tolist():
            path = self._table.paths[row]
            yield entry_of(self.root, path, path, self._label(row))

    def _label(self, row: int) -> int | str:
        value = self._table.labels.values[row]
        if self.kind == "class":
            return int(value)
        return json.dumps((value.nonzero()[0] if self.kind == "labels" else value).tolist())
