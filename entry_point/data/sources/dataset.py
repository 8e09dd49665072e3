"""Opens a dataset: its format, its classes, and all of its splits.

Every program that reads images begins here. The reader of the format lists the images, `labels`
interprets their labels, and `splits` decides which images are train, val and test.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import compress, zip_longest
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from entry_point.config.checking import check_config
from entry_point.config.commands import convert_command, index_command
from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import FORMATS, DataConfig
from entry_point.config.resolve import call, require_package, resolve
from entry_point.data.errors import DataError
from entry_point.data.plan.crops import Geometry
from entry_point.data.plan.samples import Ints
from entry_point.data.sources import looking
from entry_point.data.sources.dataset_description import SPLITS, is_packed, read_dataset
from entry_point.data.sources.folder import Tree, folded
from entry_point.data.sources.masks import MaskSource
from entry_point.data.sources.rows import IMAGE_SUFFIXES, KINDS, Files, Labels, Ranges, Rows, Words
from entry_point.data.sources.shards import ShardSource
from entry_point.data.sources.source import RangeSource, Source, UprightSizes
from entry_point.data.sources.splits import WHOLE, Splits, divided, named
from entry_point.data.sources.stream import PackedStream
from entry_point.job.text import counted, printable

log = logging.getLogger(__name__)

MOUNTS = Path("/proc/self/mountinfo")
_TENTH = "val_fraction=0.1, which takes a tenth of train"
FEW = 10
"""A class with fewer images in `val` gets a warning, as they measure it coarsely."""
_WITHOUT = {
    "train": "the model cannot learn them: add images, remove the classes, or choose others for "
    "val (data.val_fraction, or a column split of a table)",
    "val": "validation does not measure them",
}
"""Consequences of a class that a split lacks, for messages."""


@dataclass(frozen=True)
class Dataset:
    """The splits of a dataset; each is opened on demand."""

    data: DataConfig
    """The settings, with the format that was detected."""
    root: Path
    splits: Sequence[str]
    """Those of SPLITS that have images; WHOLE alone if nothing tells splits."""
    found: str
    """The number of images in each split, and how that was decided, for messages."""
    open: Callable[[str], Source]
    val_from: str = f"add data.{_TENTH}"
    """Advice for a dataset without `val`."""

    def source(self, split: str) -> Source:
        """Returns the images of a split, or of all splits for WHOLE. Raises DataError."""
        if split not in (WHOLE, *self.splits):
            remedy = f"; {self.val_from}" if split == "val" else ""
            if [*self.splits] == [WHOLE]:
                remedy = "; leave split out to read them all"
            raise DataError(f"{self.root}: no images for {split}, only {self.found}{remedy}")
        return self.open(split)


def open_dataset(
    data: DataConfig,
    root: Path,
    *,
    for_training: bool,
    labeled: bool = True,
    of_part: bool = False,
) -> Dataset:
    """Returns the dataset in `root`. Its format is `data.format`, or is detected.

    Args:
        for_training: Training needs `train` and `val`, see `divided`. Other programs get the splits
            as they are: all images are one split, WHOLE, if nothing tells splits.
        labeled: Whether labels are needed; if not, files of no split are read, too.
        of_part: Whether `root` holds only a part of the files. These are split by the hash alone,
            because the number of a class's images is unknown.

    Raises:
        DataError: there is no usable dataset.
        ConfigError: settings do not fit the dataset.
    """
    tree = Tree(root)
    looking.refuse_arrow_files(tree)
    data, also = _with_format(data, tree, labeled)
    if also:
        log.info("%s", also)
    if "." in data.format:
        return _own(data, root, labeled)
    if data.format == "shards":
        return _packed(data, root)
    rows = _read(data, tree, labeled)
    if labeled and not len(rows):
        endings = ", ".join(IMAGE_SUFFIXES)
        raise DataError(f"{root} holds no images; their names end in one of {endings}")
    labels = _labels(rows, data)
    splits = named(rows.words if labeled else Words.none(len(rows)))
    if for_training:
        tops_up = data.val_top_up is not None and labels.kind == "class" and not of_part
        classes = labels.values if tops_up else None
        fraction, where = data.val_fraction, str(root)
        splits = divided(splits, rows.names, fraction, where, classes, of_part=of_part)
    if not splits.rows:
        remedy = "call them train, val or test"
        remedy += ", or name another column with data.table.split" if rows.is_list else ""
        raise DataError(f"{root}: no image belongs to a split{splits.unused}: {remedy}")
    _log_dataset(root, rows, splits, labels if labeled else None)
    _check_files(root, rows, splits, data)
    source = partial(_source, data, rows, labels, splits)
    return Dataset(data, root, [*splits.rows], splits.describe(), source)


def _check_files(root: Path, rows: Rows, splits: Splits, data: DataConfig) -> None:
    """Raise DataError for listed files that are missing; log how many images are not JPEGs."""
    if rows.is_list and data.max_bad_fraction < 1:
        from entry_point.data.sources.listed_paths import require_files  # it imports polars

        require_files(rows, splits.rows, data)
    if rows.jpegs is not None and (others := len(rows) - rows.jpegs):
        line = "%s: %d of %d images are not JPEGs; Pillow decodes them, 3 to 14 times slower"
        log.info(line, root, others, len(rows))  # after the check, as missing files have no format


def _source(data: DataConfig, rows: Rows, labels: Labels, splits: Splits, split: str) -> Source:
    """Returns the images of a split, or of all splits."""
    chosen = splits.rows.get(split)
    if chosen is None:
        chosen = np.sort(np.concatenate([*splits.rows.values()]))
    found = _source_of(rows.only(chosen, labels))
    if isinstance(found, RangeSource) and isinstance(rows.where, (Files, Ranges)):
        _use_side_indexes(found, rows.where.folder, data, split)
    return found


def _log_dataset(root: Path, rows: Rows, splits: Splits, found: Labels | None) -> None:
    """Log what was found, its splits, and its labels if they are needed."""
    labels = ""
    if found is not None:
        kind = {"labels": "label", "numbers": "number"}.get(found.kind, "class")
        labels = f"; {counted(len(found.names), kind)}"
    log.info("%s: %s: %s%s", printable(str(root)), rows.what, splits.describe(), labels)


def _with_format(data: DataConfig, tree: Tree, labeled: bool = True) -> tuple[DataConfig, str]:
    """Returns the settings with the detected format and the access to shards, and a line if another
    format may be meant.

    Raises DataError and ConfigError.
    """
    found, also, root = data.format, "", tree.root
    # The demo is generated; the root of your own format, or a pattern of tar files, is no path.
    may_be_absent = found == "demo" or "." in found or "{" in str(root)
    if not may_be_absent and not root.exists():
        raise DataError(f"data.root={root}: no such file or folder")
    if found == "auto":
        found, also = looking.find_format(tree, data.table, labeled)
    if found == looking.IMAGES:
        return data, also
    changes = {} if found == data.format else {"format": found}
    if found == "shards" and data.access == "auto":
        changes["access"] = "stream" if _is_shown_by_a_program(root) else "map"
    return check_config({**asdict(data), **changes}, DataConfig, "data") if changes else data, also


def _is_shown_by_a_program(folder: Path) -> bool:
    """Returns whether the folder is on FUSE, where each read of a mapped page may be a request.

    https://docs.kernel.org/filesystems/proc.html#proc-pid-mountinfo-information-about-mounts
    """
    if not folder.exists() or not MOUNTS.exists():  # not on Linux
        return False
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts = (line.partition(" - ") for line in MOUNTS.read_text(errors="replace").splitlines())
    types = [kind.split()[0] for mount, _, kind in mounts if mount.split()[2] == number]
    return any(kind == "fuse" or kind.startswith("fuse.") for kind in types)


def _read(data: DataConfig, tree: Tree, labeled: bool) -> Rows:
    """Returns the rows from the reader of the format, which is imported now, as some take long to
    import."""
    name, known = data.format, FORMATS[data.format]
    if known.package:
        require_package("data.format", name, known.package, name)
    reader = resolve("data.format", f"entry_point.data.sources.{known.reader}", {})
    rows: Rows = reader(tree, data, labeled)
    return rows


def _labels(rows: Rows, data: DataConfig) -> Labels:
    if isinstance(rows.labels, Labels):
        return rows.labels
    from entry_point.data.sources.labels import read_labels  # it imports polars

    return read_labels(rows, data.table)


def _source_of(rows: Rows) -> Source:
    """Returns a source of rows whose labels have been read."""
    assert isinstance(rows.labels, Labels)
    if rows.masks is not None:
        return MaskSource(rows)
    if isinstance(rows.where, (Files, Ranges)):
        return RangeSource(rows.where, rows.names, rows.labels, rows.places)
    from entry_point.data.sources.parquet import ParquetSource  # it imports pyarrow

    return ParquetSource(rows)


def _use_side_indexes(source: RangeSource, folder: str, data: DataConfig, split: str) -> None:
    index_root = Path(data.index_root) if data.index_root else None
    source.use_side_indexes(index_root, folder, index_command(data))
    store = source.index_store
    if split == "train" and store is not None and store.grows and (known := store.count()):
        log.info("%s holds the side indexes of %s", store.file, counted(known, "image"))


def gap_lines(splits: Mapping[str, Source]) -> Iterator[str]:
    """Yields warnings for classes or labels without images in `train` or `val`, or with few in
    `val`, which is allowed."""
    counts = {
        split: dict(zip(source.classes, images_per_class(source).tolist(), strict=True))
        for split, source in splits.items()
        if split in _WITHOUT and source.kind in ("class", "labels")
    }
    for split, images in counts.items():
        if missing := [name for name, count in images.items() if not count]:
            of = f"{len(missing)} of {len(images)} classes ({_first(missing)})"
            yield f"{split} has no images of {of}: {_WITHOUT[split]}"
    train, val = counts.get("train", {}), counts.get("val", {})
    few = [name for name, count in val.items() if 0 < count < FEW and train.get(name, 1)]
    if few:
        few.sort(key=lambda name: val[name])
        shown = _first([f"{name}: {val[name]}" for name in few])
        of = f"{len(few)} of {len(val)} classes ({shown})"
        measure = "accuracy" if splits["val"].kind == "class" else "recall"
        share = f"{100 / val[few[0]]:.0f} % of the {measure} of {printable(few[0])}"
        yield f"val has fewer than {FEW} images of {of}: one image is {share}"


def _first(names: Sequence[str]) -> str:
    return printable(", ".join(names[:5])) + (", ..." if len(names) > 5 else "")


def require_shared_classes(train: Source, val: Source, val_from: str) -> None:
    """Raise DataError if `val` and `train` have no class, or label, in common, as validation would
    measure nothing. `val_from` is the dataset's.

    Warns of names that differ only in case, and of your own source if it ignores the split.
    """
    if len(train) == len(val) and all(train.key(i) == val.key(i) for i in range(len(val))):
        log.warning(
            "train and val have images of the same names: if they are the same, validation shows "
            "what was learned by heart; have your source divide them by its argument `split`"
        )
    if train.kind not in ("class", "labels"):
        return
    pairs = [f"{one} and {other}" for one, other in _differing_in_case(train.classes)]
    alike = _first(pairs)
    in_train, in_val = images_per_class(train) > 0, images_per_class(val) > 0
    if (in_train & in_val).any():
        if alike:
            log.warning("classes differ in case only: %s: rename them if they are the same", alike)
        return
    remedy = f"give both the same classes, or remove val and {val_from}"
    if alike:
        remedy = f"they differ in case only: {alike}; rename them"
    of_val, of_train = (_first([*compress(train.classes, found)]) for found in (in_val, in_train))
    raise DataError(
        f"validation would measure nothing: no class of val ({of_val}) is one of train "
        f"({of_train}): {remedy}"
    )


def _differing_in_case(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    first = dict[str, str]()
    for name in names:
        if (known := first.setdefault(folded(name), name)) != name:
            yield known, name


def images_per_class(source: Source) -> NDArray[np.int64]:
    """Returns the number of images with each class or label."""
    labels = source.labels.numpy()
    if source.kind == "class":
        return np.bincount(labels, minlength=len(source.classes))
    return labels.sum(0).astype(np.int64)


# Packed datasets


def _packed(data: DataConfig, root: Path) -> Dataset:
    """Returns all splits of the output of `make dataset`, or the one whose folder is `root`."""
    only = None
    if not is_packed(root) and root.name in SPLITS and is_packed(root.parent):
        root, only = root.parent, root.name
    dataset = read_dataset(root)
    if dataset.version == 1:
        message = "a packed dataset of version 1, which is no longer read; convert it with"
        raise DataError(f"{printable(str(root))} is {message} `{convert_command(root)}`")
    counts = {split: dataset.samples(split) for split in dataset.splits if only in (None, split)}

    def source(split: str) -> Source:
        if split == WHOLE:
            return Several({name: ShardSource(root, name) for name in counts})
        if data.access == "map":
            return ShardSource(root, split)
        index_root = Path(data.index_root) if data.index_root else root
        return PackedStream(root, split, index_root)

    found = ", ".join(f"{counted(count, 'image')} for {split}" for split, count in counts.items())
    kind = {"labels": "label", "numbers": "number"}.get(dataset.kind, "class")
    where, kinds = printable(str(root)), counted(len(dataset.classes), kind)
    log.info("%s: a packed dataset: %s; %s", where, found, kinds)
    val_from = f"pack its images again with {_TENTH}"
    if only is not None:
        val_from = f"name the whole dataset: data.root={root}"
    return Dataset(data, root, [*counts], found, source, val_from)


class Several(Source):
    """Several sources in sequence, as one."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        """`sources` by split; names of images begin with the split."""
        self._names, self._sources = [*sources], [*sources.values()]
        first = self._sources[0]
        self.classes, self.kind = first.classes, first.kind
        self.labels = torch.cat([source.labels for source in self._sources])
        self._ends = np.cumsum([len(source) for source in self._sources])
        sizes = [source.sizes for source in self._sources if source.sizes is not None]
        if len(sizes) == len(self._sources):
            heights = np.concatenate([each.heights for each in sizes])
            self.sizes = UprightSizes(heights, np.concatenate([each.widths for each in sizes]))

    def _place(self, index: int) -> tuple[int, int]:
        number = int(np.searchsorted(self._ends, index, side="right"))
        return number, index - (int(self._ends[number - 1]) if number else 0)

    def read(self, index: int) -> Tensor:
        number, place = self._place(index)
        return self._sources[number].read(place)

    def key(self, index: int) -> str:
        number, place = self._place(index)
        return self._sources[number].key(place)

    def name(self, index: int) -> str:
        number, place = self._place(index)
        name = self._sources[number].name(place)
        # Your own source may name files by absolute paths, which stay as they are.
        return name if name.startswith("/") else f"{self._names[number]}/{name}"

    def status(self, index: int) -> tuple[int, int]:
        number, place = self._place(index)
        return self._sources[number].status(place)

    def targets(self, indices: Ints, geometry: Geometry) -> Tensor:
        found = []
        for i, index in enumerate(indices.tolist()):
            number, place = self._place(index)
            one = geometry.of(np.array([i]))
            found.append(self._sources[number].targets(np.array([place]), one))
        return torch.cat(found)

    def indexes(self, indices: Ints) -> list[Tensor] | None:
        places = map(self._place, indices.tolist())
        found = [self._sources[number].indexes(np.array([place])) for number, place in places]
        return [each[0] for each in found if each] if all(found) else None


# Your own source


def _own(data: DataConfig, root: Path, labeled: bool) -> Dataset:
    """Returns the splits made by your own source, a function or class named by its dotted path."""
    opener = resolve("data.format", data.format, {})
    numbered: list[str] = []  # the classes of the split that was opened first

    def source(split: str) -> Source:
        if split == WHOLE:
            return Several({name: source(name) for name in SPLITS[:2]})
        own = call("data.kwargs", opener, data.kwargs, root, split)
        if problem := _problem(own, split, numbered if labeled else []):
            raise ConfigError("data.format", data.format, problem)
        numbered[:] = own.classes
        return own

    return Dataset(data, root, SPLITS[:2], "those of train and val", source)


def _problem(source: object, split: str, numbered: Sequence[str]) -> str | None:
    """Returns how your own source violates the interface `Source`; None if it does not."""
    if not isinstance(source, Source):
        return f"must return a Source; {type(source).__name__} is not one"
    if missing := [name for name in ("classes", "labels") if not hasattr(source, name)]:
        return f"must return a source that has {' and '.join(missing)}"
    if source.kind not in KINDS:
        return f"its kind must be one of {', '.join(KINDS)}"
    if not len(source):
        return f"the split {split} holds no images"
    if twice := [name for name, count in Counter(source.classes).items() if count > 1]:
        return f"its classes must differ; {twice[0]} occurs twice"
    pairs = zip_longest(numbered, source.classes) if numbered else ()
    for number, (one, other) in enumerate(pairs):
        if one != other:
            where = f"class {number} of {split} is {other!r}, that of the other split {one!r}"
            return f"its splits must have the same classes, as labels are their numbers; {where}"
    if source.kind == "targets":
        has_none = type(source).targets is Source.targets
        return "must return a source that has targets()" if has_none else None
    labels, is_class = source.labels, source.kind == "class"
    shape = (len(source),) if is_class else (len(source), len(source.classes))
    types = (torch.int32, torch.int64) if is_class else (torch.float32,)
    if not isinstance(labels, torch.Tensor) or labels.shape != shape or labels.dtype not in types:
        return f"its labels must be a tensor of shape {shape} and type {types[-1]}"
    if not is_class and not labels.isfinite().all():
        image, column = (~labels.isfinite()).nonzero()[0].tolist()
        found = f"{source.classes[column]}={float(labels[image, column])}"
        return f"its labels must be finite; {source.key(image)} has {found}"
    if is_class and not 0 <= int(labels.min()) <= int(labels.max()) < len(source.classes):
        return f"its labels must be from 0 to {len(source.classes) - 1}, positions in its classes"
    return None
