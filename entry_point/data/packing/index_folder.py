"""Indexes a folder of images, or the files of a table, without copying or changing any."""

from __future__ import annotations

import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path

import custom_op
from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import usable_cores
from entry_point.config.packing_config import OptimizeConfig
from entry_point.data.engines.ahead import map_ahead
from entry_point.data.packing.contents import Contents, contents_of
from entry_point.data.packing.convert import RejectedError
from entry_point.data.packing.encode import index_file
from entry_point.data.packing.output_folder import beside, locked
from entry_point.data.packing.scan_source import Entry
from entry_point.data.progress_bar import track
from entry_point.data.sources.class_folders import FOLDER_INDEX
from entry_point.data.sources.folder_index import IndexedFile, write_folder_index

_AHEAD_PER_WORKER = 4
_FILES_PER_CHUNK = 4096

log = logging.getLogger(__name__)


def index_folder(source: Path, output: Path | None, options: OptimizeConfig) -> Path:
    """Make the folder index of `source` in `output` (None: in `source` itself); returns its path.

    It is written beside its final name and renamed once it is complete. Raises DataError and
    ConfigError.
    """
    if options.max_side is not None:
        raise ConfigError("max_side", options.max_side, "needs output_format=shards or folder")
    contents = contents_of(source, options)
    folder = (output or contents.root) / FOLDER_INDEX
    remedy = "choose a writable folder with output=FOLDER, and train with data.index_root=FOLDER"
    with locked(folder, remedy):
        unfinished = beside(folder, "unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        counts: Counter[str] = Counter()
        size = write_folder_index(unfinished, _chunks(_indexed(contents, options, counts)))
        _publish(unfinished, folder)
    _report(counts, size)
    return folder


def _publish(unfinished: Path, folder: Path) -> None:
    os.sync()
    if folder.exists():  # of an earlier run; a folder cannot be replaced at once
        old = beside(folder, "old")
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
        unfinished.rename(folder)
        shutil.rmtree(old)
    else:
        unfinished.rename(folder)
    os.sync()


def _chunks(files: Iterator[IndexedFile]) -> Iterator[list[IndexedFile]]:
    while chunk := list(islice(files, _FILES_PER_CHUNK)):
        yield chunk


def _indexed(
    contents: Contents, options: OptimizeConfig, counts: Counter[str]
) -> Iterator[IndexedFile]:
    """The JPEG files, in the order of the source; counts what became of each file."""
    custom_op.load()
    workers = options.workers or usable_cores()
    total = sum(1 for _ in _usable(contents))  # listing twice takes less than a list in memory
    with ThreadPoolExecutor(workers) as pool:
        index = partial(_index, contents.root)
        found = map_ahead(pool, index, _usable(contents), workers * _AHEAD_PER_WORKER)
        for file, outcome in track(found, total, "indexing"):
            counts[outcome] += 1
            if file is not None:
                yield file


def _usable(contents: Contents) -> Iterator[Entry]:
    """The files that are images by their names, of all splits."""
    for split in contents.splits:
        yield from (entry for entry in contents.entries(split) if not entry.rejected)


def _index(root: Path, entry: Entry) -> tuple[IndexedFile | None, str]:
    try:
        size, index, reason = index_file(root / entry.path)
    except RejectedError as error:
        log.warning("%s: %s", entry.path, error)
        return None, "damaged or no JPEG"
    return IndexedFile(entry.path, size, index), "indexed" if index else reason


def _report(counts: Counter[str], size: int) -> None:
    log.info("%d files indexed, %.1f MB of side indexes", counts.pop("indexed", 0), size / 1e6)
    for reason, count in counts.most_common():
        log.info("  %d without: %s", count, reason)
