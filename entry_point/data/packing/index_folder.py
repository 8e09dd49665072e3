"""Indexes a folder of images, or the files of a table, without copying or changing them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import custom_op
from entry_point.config.config_errors import ConfigError
from entry_point.config.packing_config import OptimizeConfig
from entry_point.data.packing.encode import RejectedError, index_image
from entry_point.data.packing.output_folder import locked
from entry_point.data.progress_bar import in_threads
from entry_point.data.sources.dataset import open_dataset
from entry_point.data.sources.side_index_store import FOLDER_INDEX, write_folder_index
from entry_point.data.sources.source import RangeSource
from entry_point.data.sources.splits import WHOLE
from entry_point.job.text import counted, printable

log = logging.getLogger(__name__)


def index_folder(source: Path, output: Path | None, options: OptimizeConfig) -> Path:
    """Write the side indexes of `source` to a file in `output`, or beside the images; return it.

    Raises DataError, ConfigError and OSError.
    """
    dataset = open_dataset(options.dataset(str(source)), source, for_training=False)
    images = dataset.source(WHOLE)
    if not isinstance(images, RangeSource):
        message = f"needs files or tar files, not data.format={dataset.data.format}"
        raise ConfigError("output_format", "index", message)
    assert images.index_store is not None
    root = Path(images.index_store.root)  # the folder in which training looks for the file
    file = (output or root) / FOLDER_INDEX
    remedy = "choose a writable folder with output=FOLDER, and train with data.index_root=FOLDER"
    with locked(file, remedy):
        counts: Counter[str] = Counter()
        write_folder_index(file, root, _indexed(images, counts))
    indexed, size = counted(counts.pop("indexed", 0), "file"), file.stat().st_size / 1e6
    log.info("%s indexed, %.1f MB of side indexes", indexed, size)
    for reason, count in counts.most_common():
        log.info("  %d without: %s", count, reason)
    return file


def _indexed(images: RangeSource, counts: Counter[str]) -> Iterator[tuple[str, bytes]]:
    """Yields the path and side index of each indexed JPEG; adds up all images by outcome."""
    custom_op.load()
    make = partial(_index, images)
    for file, index, outcome in in_threads(make, range(len(images)), len(images), "indexing"):
        counts[outcome] += 1
        if index is not None:
            yield file, index


def _index(images: RangeSource, number: int) -> tuple[str, bytes | None, str]:
    """Returns the path, the side index (None if rejected), and the outcome to count."""
    file = images.path(number)
    try:
        index, reason = index_image(images, number)
    except RejectedError as error:
        log.warning("%s: %s", printable(file), error)
        return file, None, "damaged or not a JPEG"
    return file, index, "indexed" if index else reason
