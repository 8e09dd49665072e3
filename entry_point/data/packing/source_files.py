"""The files of a source folder: which are to be packed, and why the others are not."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from entry_point.data.errors import DataError
from entry_point.data.sources.folder import (
    SPLITS,
    class_names,
    everything_below,
    loose_files,
    require_folder,
)

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")


class Entry(NamedTuple):
    """One file of the source."""

    path: str
    """Relative to the source, with the split and the class in front."""
    key: str
    """<class>/<name without suffix>: the name of its samples in the shards."""
    label: int
    bytes: int
    changed: int
    """When its content was changed last, in nanoseconds."""
    rejected: str
    """Why it is none to be packed, if so."""


def list_classes(source: Path, file: str | None) -> list[str]:
    """Class names: those in `file`, else the folders that all splits agree on."""
    splits = list_splits(source)
    if file is not None:
        return _read_classes(Path(file))
    classes = class_names(source, splits[0])
    for split in splits[1:]:
        difference = sorted(set(classes) ^ set(class_names(source, split)))
        if difference:
            raise DataError(
                f"the class folders of {source / splits[0]} and {source / split} differ: "
                f"{', '.join(difference[:5])} in only one; classes=FILE names them all"
            )
    for name in classes:
        if _printable(name) != name:
            raise DataError(f"{source}: the class folder {_printable(name)} is no UTF-8: rename it")
    return classes


def list_splits(source: Path) -> list[str]:
    require_folder("source", source)
    splits = [split for split in SPLITS if (source / split).is_dir()]
    if not splits:
        raise DataError(f"source={source} has neither of the folders {', '.join(SPLITS)}")
    return splits


def left_out(source: Path) -> list[str]:
    """What lies beside the splits and is not packed."""
    return sorted(_printable(entry.name) for entry in source.iterdir() if entry.name not in SPLITS)


def found(source: Path, split: str, classes: list[str], whole: bool) -> Iterator[Entry]:
    """All files of a split in name order."""
    labels = {name: label for label, name in enumerate(classes)}
    present = class_names(source, split, least=int(whole))
    for file in loose_files(source / split):
        yield _entry(source, f"{split}/{file}", -1, "lies in no class folder")
    for name in present:
        if name not in labels:
            raise DataError(f"{source / split / name}: {name} is not in the list of classes")
        images = 0
        for file in everything_below(source / split / name):
            entry = _entry(source, f"{split}/{name}/{file}", labels[name])
            images += not entry.rejected
            yield entry
        if whole and not images:
            raise DataError(f"{source / split / name} is empty: remove it or add images")
    if whole and len(present) < len(classes):
        raise DataError(f"{source / split} lacks {sorted(set(classes) - set(present))}")


def _read_classes(file: Path) -> list[str]:
    try:
        names = {line.strip() for line in file.read_text("utf-8").splitlines()}
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"classes={file} cannot be read: {error}") from error
    return sorted(names - {""})


def _entry(source: Path, path: str, label: int, rejected: str = "") -> Entry:
    size = changed = 0
    rejected = rejected or _no_image_by_name(path)
    if not rejected:
        try:
            status = (source / path).stat()
            size, changed = status.st_size, status.st_mtime_ns
            if not stat.S_ISREG(status.st_mode):
                rejected = "is no regular file"
        except OSError as error:
            rejected = f"unreadable: {error.strerror}"
    return Entry(_printable(path), _key(path), label, size, changed, rejected)


def _no_image_by_name(path: str) -> str:
    if PurePosixPath(path).name.startswith("."):
        return "hidden"
    if not path.lower().endswith(IMAGE_SUFFIXES):
        return f"no image by its name, which ends in none of {', '.join(IMAGE_SUFFIXES)}"
    return "" if _printable(path) == path else "its name is no UTF-8: rename it"


def _key(path: str) -> str:
    # Readers of tar shards take what follows the first dot of a file's name as its kind.
    file = PurePosixPath(_printable(path))
    return str(PurePosixPath(*file.parts[1:-1], file.stem.replace(".", "_")))


def _printable(name: str) -> str:
    """Names are bytes; those that are no UTF-8 are shown with escapes."""
    return name.encode("utf-8", "backslashreplace").decode()
