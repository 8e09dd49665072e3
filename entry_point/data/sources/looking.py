"""Detects the format of a dataset from a few of its names."""

from __future__ import annotations

import importlib.util
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from entry_point.config.data_config import TableConfig
from entry_point.data.errors import DataError
from entry_point.data.sources.archives import is_archive, refuse_archives
from entry_point.data.sources.class_folders import count_classes
from entry_point.data.sources.dataset_description import SPLITS, is_description, is_packed
from entry_point.data.sources.folder import Tree, split_folders
from entry_point.data.sources.mask_folders import looks_like_masks
from entry_point.data.sources.rows import IMAGE_SUFFIXES
from entry_point.data.sources.table_folder import LIST_SUFFIXES, TABLE_SUFFIXES, find_tables
from entry_point.job.text import printable

IMAGES = "images"
"""Name for a folder of images without labels, which is no value of `data.format`."""
_MOST_BELOW, _MOST_OF_FOLDER = 100, 10
"""Most names to look at below the root, and in each of its folders."""


class Glance:
    """The names in a folder, and in the first folders below it."""

    def __init__(self, tree: Tree) -> None:
        """List a few folders of `tree`. Raises DataError."""
        self.tree, self.root = tree, tree.root
        self.folders, self.files = tree.at()
        self.below = list[str]()
        """Paths of files in the root's folders."""
        left, waiting = _MOST_BELOW, deque(self.folders[:_MOST_OF_FOLDER])
        while waiting and left > 0:
            folder = waiting.popleft()
            names = tree.at(folder)
            waiting += (f"{folder}/{name}" for name in names.folders[:_MOST_OF_FOLDER])
            self.below += (f"{folder}/{name}" for name in names.files)
            left -= min(len(names.folders) + len(names.files), _MOST_OF_FOLDER)

    def holds(self, *suffixes: str) -> bool:
        return any(name.lower().endswith(suffixes) for name in (*self.files, *self.below))


def find_format(tree: Tree, table: TableConfig, labeled: bool) -> tuple[str, str]:
    """Returns the value of `data.format` for the names found, and a line if another format is
    possible.

    `table` may name the columns of images or paths, and of labels. Without labels, the format may
    be IMAGES. Raises DataError if there is nothing to read.
    """
    root = tree.root
    if not root.is_dir():
        return _format_of_file(root, table, labeled), ""
    if _describes(tree) or (root.name in SPLITS and is_packed(root.parent)):
        return "shards", ""
    seen = Glance(tree)
    files = seen.below if seen.folders else seen.files
    if not seen.holds(".tar") and files and all(map(is_archive, files)):
        refuse_archives(root, files)
    readings = _readings(seen, table.path, labeled)
    if not readings:
        refuse_archives(root, seen.files)
        shown = ", ".join(printable(name) for name in (*seen.folders, *seen.files)[:5])
        holds = f"holds no dataset, but {shown}" if shown else "is empty"
        raise DataError(
            f"data.root={root} {holds}: it must hold class folders "
            "(train/<class>/, val/<class>/ or <class>/), a table of paths and labels, tar or "
            "Parquet files, images with masks, or the output of `make dataset`"
        )
    first, *others = readings
    if not others:
        return first, _tables_beside(seen, first, readings[first])
    also = " or ".join(f"{readings[each]} (data.format={each})" for each in others)
    return first, f"{root} is read as {readings[first]}; it may also be read as {also}"


def _tables_beside(seen: Glance, found: str, what: str) -> str:
    """Returns a line on tables that are ignored, as the images beside them have other labels."""
    others = [suffix for suffix in TABLE_SUFFIXES if found != "parquet" or suffix != ".parquet"]
    names = [name for name in seen.files if Path(name).suffix.lower() in others]
    if not names or found in ("manifest", IMAGES):
        return ""
    shown = printable(", ".join(names[:5])) + (", ..." if len(names) > 5 else "")
    return f"{seen.root} is read as {what}; not read: {shown}"


def _format_of_file(file: Path, table: TableConfig, labeled: bool) -> str:
    suffix = file.suffix.lower()
    if suffix == ".tar":
        return "webdataset"
    if suffix == ".parquet" and holds_images(file, table.path):
        return "parquet"
    if suffix in (*TABLE_SUFFIXES, *LIST_SUFFIXES):
        from entry_point.data.sources.table import lists_masks  # it imports polars

        return "masks" if labeled and lists_masks(file, table) else "manifest"
    if suffix in IMAGE_SUFFIXES and not labeled:
        return IMAGES
    refuse_archives(file.parent, [file.name])
    known = ", ".join((*TABLE_SUFFIXES, *LIST_SUFFIXES, ".tar"))
    raise DataError(f"data.root={file}: must be a folder, or a file that ends in one of {known}")


def _readings(seen: Glance, column: str | None, labeled: bool) -> Mapping[str, str]:
    """Returns the possible formats, the first of which is chosen."""
    found = dict[str, str]()
    if not seen.holds(*IMAGE_SUFFIXES):
        if seen.holds(".tar"):
            return {"webdataset": "tar files"}
        if seen.holds(".parquet") and _parquet_holds_images(seen, column):
            return {"parquet": "Parquet files"}
    if not labeled:
        return {IMAGES: "images"}
    if looks_like_masks(seen.tree):
        return {"masks": "images with masks"}
    tables, tops = find_tables(seen.tree), split_folders(seen.tree)
    _refuse_boxes(seen)
    classes = 0
    try:
        if len(seen.folders) == 1 and not (tables or tops):
            _require_no_other_inside(seen, column)
        classes = count_classes(seen.tree)
    except DataError:
        if not tables:
            raise
    # A table beside a single folder names the images in it, whatever the folders in that are.
    is_of_table = bool(tables) and len(seen.folders) == 1 and not tops
    if classes and not is_of_table and (classes > 1 or not tables):
        found["folder"] = "class folders"
    if tables:
        found["manifest"] = "a table" if len(tables) == 1 else "tables"
    if classes > 1 and is_of_table:
        found["folder"] = "class folders"
    return found


def _require_no_other_inside(seen: Glance, column: str | None) -> None:
    """Raise DataError if the only folder holds a dataset that is not in class folders."""
    inner = seen.tree.below(seen.folders[0])
    found = {"shards": "a packed dataset"} if _describes(inner) else {}
    found = found or dict(_readings(Glance(inner), column, True))
    if found and "folder" not in found:
        what = next(iter(found.values()))
        raise DataError(f"{seen.root} holds only a folder, with {what}: set data.root={inner.root}")


def _describes(tree: Tree) -> bool:
    """Returns whether a folder holds a packed dataset."""
    return any(map(is_description, tree.at().files))


def _refuse_boxes(seen: Glance) -> None:
    """Raise DataError for boxes of annotation tools beside the images."""
    for name in (*seen.files, *seen.below):
        if name.rpartition("/")[2].startswith("_annotations."):
            raise DataError(
                f"{seen.root} holds boxes ({printable(name)}), no class per image: read them with "
                "your own source, as docs/adapt.md shows under Boxes"
            )


def refuse_arrow_files(tree: Tree) -> None:
    """Raise DataError, with a way to convert it, for a folder saved by Hugging Face's datasets."""
    root, files = tree.root, tree.at().files if tree.root.is_dir() else []
    arrow = [name for name in files if name.endswith(".arrow")]
    is_saved = not {"state.json", "dataset_dict.json"}.isdisjoint(files)
    if arrow or "dataset_dict.json" in files:
        call = f"load_from_disk('{root}')"
        call = call if is_saved else f"Dataset.from_file('{root / arrow[0]}')"
        raise DataError(
            f"{root} holds Arrow files of Hugging Face's datasets: write Parquet files, "
            f"{call}.to_parquet('FOLDER/train.parquet') and the same for each split, and set "
            "data.root=FOLDER"
        )


def holds_images(file: Path, column: str | None) -> bool:
    """Returns whether a Parquet file holds images, in `column` or in any. Raises DataError."""
    if importlib.util.find_spec("pyarrow") is None:
        return False
    from entry_point.data.sources.parquet import has_images

    return has_images(file, column)


def _parquet_holds_images(seen: Glance, column: str | None) -> bool:
    """Returns False for a folder that is a table: it has a single Parquet file without images."""
    names = [each for each in (*seen.files, *seen.below) if each.lower().endswith(".parquet")]
    if len(names) > 1 or importlib.util.find_spec("pyarrow") is None:
        return True
    return holds_images(seen.root / names[0], column)
