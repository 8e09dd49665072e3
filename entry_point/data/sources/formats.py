"""The sources by the words of `data.format`, and your own by its dotted path.

What is optional is imported once it is used.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import DataConfig
from entry_point.config.resolve import call, resolve
from entry_point.data.errors import DataError
from entry_point.data.sources.dataset_description import is_packed
from entry_point.data.sources.demo import ensure_demo
from entry_point.data.sources.folder import (
    IMAGE_SUFFIXES,
    VAL_FOLDERS,
    FolderSource,
    log_formats,
    visible_files,
)
from entry_point.data.sources.shards import ShardSource
from entry_point.data.sources.source import KINDS, FileSource, Source
from entry_point.data.sources.stream import PackedStream

Open = Callable[[DataConfig, Path, str], Source]
"""(data, root, split) -> the split."""

log = logging.getLogger(__name__)

TABLE_SUFFIXES = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson", ".json", ".manifest")
_TABLE = "entry_point.data.sources.table.open_manifest"
_PARQUET = "entry_point.data.sources.parquet"
_MASKS = "entry_point.data.sources.masks.open_masks"
_MASKS_OF_TABLE = "entry_point.data.sources.table.check_masks"
_TARS = "entry_point.data.sources.webdataset.open_tars"
_SPLIT_FOLDERS = {"train": ("train",), "val": VAL_FOLDERS}
_NEEDED = ("classes", "kind", "labels", "sizes", "__len__", "read", "following", "key")


def is_table(path: Path) -> bool:
    """Whether it is a file with the name of a table."""
    return path.suffix.lower() in TABLE_SUFFIXES and path.is_file()


def holds_tars(root: Path) -> bool:
    """Whether it is a tar file, a pattern of them, or a folder of them and no images."""
    return _holds(root, ".tar") if root.is_dir() else root.suffix == ".tar"


def holds_parquet(root: Path, column: str | None) -> bool:
    """Whether it is a folder of Parquet files and no images, or such a file that holds images.

    `column` is that of the images or paths; None: any column may hold images.
    """
    if root.is_dir():
        return _holds(root, ".parquet")
    if root.suffix.lower() != ".parquet" or not root.is_file() or not _reads_parquet():
        return False
    return bool(parquet_reader().has_images(root, column))


def _holds(root: Path, suffix: str) -> bool:
    """Whether the folder holds such files but neither images nor a packed dataset.

    The first image ends the search: there may be millions.
    """
    found = False
    for file in () if is_packed(root) else visible_files(root):
        if file.lower().endswith(IMAGE_SUFFIXES):
            return False
        found = found or file.lower().endswith(suffix)
    return found


def metadata_tables(root: Path) -> dict[str, Path]:
    """The table of each split in a folder that has `train/metadata.csv` and the like; else none."""
    names = [f"metadata{suffix}" for suffix in TABLE_SUFFIXES]
    found = {
        split: root / folder / name
        for split, folders in _SPLIT_FOLDERS.items()
        for folder in folders
        for name in names
        if (root / folder / name).is_file()
    }
    return found if found.keys() == _SPLIT_FOLDERS.keys() else {}


def open_format(data: DataConfig, root: Path, split: str) -> Source:
    """The split of the dataset in `root`. Raises DataError and ConfigError."""
    known: dict[str, Open] = {
        "demo": _demo,
        "folder": _folder,
        "manifest": partial(_files, _TABLE),
        "shards": _shards,
        "webdataset": partial(_files, _TARS),
        "parquet": open_parquet,
        "masks": _masks,
    }
    opener = resolve("data.format", data.format, known)
    if data.format in known:
        source: Source = opener(data, root, split)
        return source
    own = call("data.kwargs", opener, data.kwargs, root, split)
    _check(data.format, own, split)
    return own


def _demo(data: DataConfig, root: Path, split: str) -> Source:
    ensure_demo(root, data.demo())
    return _with_side_indexes(FolderSource(root, split), data, root, split)


def _folder(data: DataConfig, root: Path, split: str) -> Source:
    source = FolderSource(root, split, data.val_fraction)
    if split == "train":
        log_formats(root, source.jpegs, len(source))
    return _with_side_indexes(source, data, root, split)


def _files(opener: str, data: DataConfig, root: Path, split: str) -> Source:
    """The split that the function with this dotted path opens as a FileSource."""
    source = resolve("data.format", opener, {})(data, root, split)
    return _with_side_indexes(source, data, source.folder, split)


def _masks(data: DataConfig, root: Path, split: str) -> Source:
    if is_table(root):
        resolve("data.format", _MASKS_OF_TABLE, {})(data, root, split)
    return _files(_MASKS, data, root, split)


def open_parquet(data: DataConfig, root: Path, split: str) -> Any:
    """The split, a ParquetSource. Raises DataError and ConfigError."""
    return parquet_reader().open_parquet(data, root, split)


def parquet_reader() -> Any:
    """The module that reads Parquet files. Raises ConfigError without what it needs."""
    if not _reads_parquet():
        must = (
            "needs the package pyarrow: run `make setup EXTRAS=parquet`, or build the image with "
            "`make image EXTRAS=parquet`"
        )
        raise ConfigError("data.format", "parquet", must)
    return importlib.import_module(_PARQUET)


def _reads_parquet() -> bool:
    return importlib.util.find_spec("pyarrow") is not None


def _with_side_indexes(
    source: FileSource, data: DataConfig, root: str | Path, split: str
) -> Source:
    index_root = Path(data.index_root) if data.index_root else None
    source.use_side_indexes(index_root, root, data.index_command())
    if split == "train" and source.index_cache and (known := source.index_cache.count()):
        log.info("%s holds the side indexes of %d images", source.index_cache.file, known)
    return source


def _shards(data: DataConfig, root: Path, split: str) -> Source:
    if data.access == "map":
        return ShardSource(root, split)
    index_root = Path(data.index_root) if data.index_root else root
    return PackedStream(root, index_root, split)


def _check(path: str, source: Any, split: str) -> None:
    """Raise ConfigError unless your own source has what `Source` asks for."""
    if missing := [name for name in _NEEDED if not hasattr(source, name)]:
        must = f"must return a source; {type(source).__name__} has no {', '.join(missing)}"
        raise ConfigError("data.format", path, must)
    if source.kind not in KINDS:
        raise ConfigError("data.format", path, f"its kind must be one of {', '.join(KINDS)}")
    if not len(source):
        raise DataError(f"data.format={path}: the split {split} holds no images")
    if source.kind == "targets":
        if not hasattr(source, "targets"):
            raise ConfigError("data.format", path, "must return a source that has targets()")
        return
    labels = source.labels
    is_class = source.kind == "class"
    shape = (len(source),) if is_class else (len(source), len(source.classes))
    types = (torch.int32, torch.int64) if is_class else (torch.float32,)
    if not isinstance(labels, torch.Tensor) or labels.shape != shape or labels.dtype not in types:
        must = f"its labels must be a tensor of shape {shape} and type {types[-1]}"
        raise ConfigError("data.format", path, must)
    if is_class and not 0 <= int(labels.min()) <= int(labels.max()) < len(source.classes):
        must = f"its labels must be from 0 to {len(source.classes) - 1}, positions in its classes"
        raise ConfigError("data.format", path, must)
