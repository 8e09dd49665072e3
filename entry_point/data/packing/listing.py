"""What there is to pack: files, labels, keys, in an order that depends on nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from entry_point.data.errors import DataError
from entry_point.data.folder import SPLITS, class_names, files_below
from entry_point.data.philox import permutation

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
_SHUFFLE_STREAM = 21


@dataclass(frozen=True)
class Entry:
    """One file of the source."""

    path: str
    """Relative to the source, with the split and the class in front."""
    key: str
    """<class>/<name without suffix>: the name of its samples in the shards."""
    label: int
    bytes: int


def list_classes(source: Path, file: str | None) -> list[str]:
    """Class names: those in `file`, else the folders that all splits agree on."""
    if file is not None:
        names = [line.strip() for line in Path(file).read_text("utf-8").splitlines()]
        return sorted(name for name in names if name)
    splits = list_splits(source)
    classes = class_names(source, splits[0])
    for split in splits[1:]:
        difference = sorted(set(classes) ^ set(class_names(source, split)))
        if difference:
            raise DataError(
                f"the class folders of {source / splits[0]} and {source / split} differ: "
                f"{', '.join(difference[:5])} in only one; classes=FILE names them all"
            )
    return classes


def list_splits(source: Path) -> list[str]:
    if not source.is_dir():
        raise DataError(f"source={source}: there is no such folder")
    splits = [split for split in SPLITS if (source / split).is_dir()]
    if not splits:
        raise DataError(f"source={source} has neither of the folders {', '.join(SPLITS)}")
    return splits


def list_entries(source: Path, split: str, classes: list[str], whole: bool) -> list[Entry]:
    """All files of a split in name order. A class without any is an error if `whole`."""
    labels = {name: label for label, name in enumerate(classes)}
    entries: list[Entry] = []
    present = class_names(source, split)
    for name in present:
        if name not in labels:
            raise DataError(f"{source / split / name}: {name} is not in the list of classes")
        found = [
            _entry(source, split, name, file, labels[name])
            for file in files_below(source / split / name)
        ]
        if not found:
            raise DataError(f"{source / split / name} is empty: remove it or add images")
        entries += found
    if whole and len(present) < len(classes):
        raise DataError(f"{source / split} lacks {sorted(set(classes) - set(present))}")
    _require_distinct_keys(entries)
    return entries


def shuffled_shards(entries: list[Entry], seed: int, shard_bytes: float) -> list[list[Entry]]:
    """The entries in random order, cut where the source bytes fill a shard."""
    shards: list[list[Entry]] = [[]]
    filled = 0
    for place in permutation((seed, _SHUFFLE_STREAM), len(entries), 0):
        entry = entries[place]
        if shards[-1] and filled + entry.bytes > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(entry)
        filled += entry.bytes
    return shards


def _entry(source: Path, split: str, name: str, file: str, label: int) -> Entry:
    path = PurePosixPath(split, name, file)
    # Readers of tar shards take what follows the first dot of a file's name as its kind.
    stem = PurePosixPath(file).with_suffix("")
    key = PurePosixPath(name, stem.parent, stem.name.replace(".", "_"))
    return Entry(str(path), str(key), label, (source / path).stat().st_size)


def _require_distinct_keys(entries: list[Entry]) -> None:
    paths: dict[str, str] = {}
    for entry in entries:
        other = paths.setdefault(entry.key, entry.path)
        if other != entry.path:
            raise DataError(f"{other} and {entry.path} share the key {entry.key}: rename one")
