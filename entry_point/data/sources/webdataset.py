"""Images in the tar files of others (data=webdataset), with their labels beside them.

As the `webdataset` package writes them: the members of a sample follow each other and share a key,
their name up to its first dot. One is an image, and one of .cls, .txt or .json holds the label. All
headers are read once, at the start; then images are read in any order, each with one read.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from entry_point.config.data_config import DataConfig
from entry_point.contract.printable import printable
from entry_point.data.errors import DataError
from entry_point.data.patience import patiently
from entry_point.data.plan.samples import Ints
from entry_point.data.sources.dataset_description import Kind
from entry_point.data.sources.file_bytes import read_bytes
from entry_point.data.sources.folder import (
    IMAGE_SUFFIXES,
    log_formats,
    visible_files,
)
from entry_point.data.sources.others import Division, numbered
from entry_point.data.sources.source import FileSource, PathList

log = logging.getLogger(__name__)

LABELS = ("cls", "txt", "json")
"""The suffixes of labels: the first that a sample has is read."""
MOST_LABEL_BYTES = 1 << 20
LABEL_KEYS = ("label", "labels", "cls", "class")
"""Where a JSON object has the label."""

_opened: dict[str, TarFiles] = {}
"""The last dataset, for the other split."""


class Sample(NamedTuple):
    tar: int
    """Number of its tar file."""
    name: str
    """Of the image's member."""
    offset: int
    length: int
    label: str | list[str]


@dataclass(frozen=True)
class TarFiles:
    """All samples of a dataset, in the order of the tar files."""

    folder: str
    """What the paths of the tar files start from."""
    tars: list[str]
    changed: list[int]
    """Modification time of each tar file in nanoseconds."""
    paths: PathList
    """Tar file and member of each image."""
    tar: NDArray[np.int32]
    places: Ints
    """(N, 2): offset and length in bytes."""
    is_val: NDArray[np.bool_]
    kind: Kind
    classes: list[str]
    labels: NDArray[Any]
    """As `Source.labels`."""


class TarSource(FileSource):
    """The images of one split."""

    def __init__(self, files: TarFiles, split: str) -> None:
        self._tars, self._numbers = files, np.flatnonzero(files.is_val == (split == "val"))
        self.folder = files.folder
        super().__init__([], files.labels[self._numbers], files.classes, files.kind)

    def listing(self) -> Iterable[bytes]:
        """See ListedSource."""
        yield self._tars.paths.only(self._numbers)

    def file(self, index: int) -> str:
        """The path of the tar file, and the member's in it."""
        return f"{self.folder}/{self._tars.paths[int(self._numbers[index])]}"

    def status(self, index: int) -> tuple[int, int]:
        number = int(self._numbers[index])
        changed = self._tars.changed[int(self._tars.tar[number])]
        return int(self._tars.places[number, 1]), changed

    def read(self, index: int) -> Tensor:
        number = int(self._numbers[index])
        tar = self._tars.tars[int(self._tars.tar[number])]
        return read_bytes(f"{self.folder}/{tar}", *self._tars.places[number].tolist())


def open_tars(data: DataConfig, root: Path, split: str) -> TarSource:
    """The split of the tar files in the folder `root`, or of those of a pattern with braces.

    A tar file belongs to the split that a word of its path names: `train`, `val`, and what means
    the same. Without such words, `data.val_fraction` of the images is `val`. Raises DataError.
    """
    folder, tars = _tar_files(root)
    stamp = repr((folder, tars, data.val_fraction))
    if stamp not in _opened:
        files = _read(folder, tars, data.val_fraction)
        log_formats(root, files.paths.jpegs, len(files.paths))
        _opened.clear()
        _opened[stamp] = files
    return TarSource(_opened[stamp], split)


def all_images(root: Path) -> TarSource:
    """The images of all tar files, whatever their split, without labels. Raises DataError."""
    folder, tars = _tar_files(root)
    found = (_samples(folder, tar, number, False) for number, tar in enumerate(tars))
    samples = list(itertools.chain.from_iterable(found))
    none = np.full(len(samples), -1)
    return TarSource(_collected(folder, tars, samples, none > 0, "class", [], none), "train")


def _tar_files(root: Path) -> tuple[str, dict[str, int]]:
    """A folder; the paths of tar files below it, and their modification times in nanoseconds."""
    if root.is_dir():
        folder, tars = str(root), [f for f in visible_files(root) if f.lower().endswith(".tar")]
        if not tars:
            raise DataError(f"data.root={root} holds no tar file")
    elif root.is_file():
        folder, tars = str(root.parent), [root.name]
    else:
        start, _, _ = str(root).partition("{")
        folder = start.rpartition("/")[0] or "."
        tars = [tar.removeprefix(f"{folder}/") for tar in expanded(str(root))]
        for tar in tars:
            if not Path(folder, tar).is_file():
                raise DataError(f"data.root={root}: no such file: {folder}/{tar}")
    return folder, {tar: Path(folder, tar).stat().st_mtime_ns for tar in tars}


def expanded(pattern: str) -> list[str]:
    """What a shell makes of the braces: `{000..146}` counts, `{train,val}` chooses."""
    parts = re.split(r"\{([^{}]*)\}", pattern)
    choices = [[part] if i % 2 == 0 else _choices(part) for i, part in enumerate(parts)]
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def _choices(braces: str) -> list[str]:
    if not (found := re.fullmatch(r"(\d+)\.\.(\d+)", braces)):
        return braces.split(",")
    first, last = found.groups()
    return [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]


def _read(folder: str, tars: dict[str, int], val_fraction: float | None) -> TarFiles:
    division = Division.of(folder, [*tars], val_fraction)
    used = division.files
    found = (_samples(folder, tar, number, True) for number, tar in enumerate(used))
    samples = list(itertools.chain.from_iterable(found))
    paths = _paths(used, samples)
    is_val = division.is_val(np.array([sample.tar for sample in samples], np.int32), paths)

    def error(place: int, reason: str) -> DataError:
        return DataError(f"{folder}/{printable(paths[place])}: {reason}")

    kind, classes, labels = numbered([sample.label for sample in samples], error)
    division.log(is_val, kind, classes)
    times = {tar: tars[tar] for tar in used}
    return _collected(folder, times, samples, is_val, kind, classes, labels)


def _paths(tars: list[str], samples: list[Sample]) -> list[str]:
    return [f"{tars[sample.tar]}/{sample.name}" for sample in samples]


def _collected(
    folder: str,
    tars: dict[str, int],
    samples: list[Sample],
    is_val: NDArray[np.bool_],
    kind: Kind,
    classes: list[str],
    labels: NDArray[Any],
) -> TarFiles:
    return TarFiles(
        folder,
        [*tars],
        [*tars.values()],
        PathList.of("\0".join([*_paths([*tars], samples), ""]).encode(errors="surrogateescape")),
        np.array([sample.tar for sample in samples], np.int32),
        np.array([(sample.offset, sample.length) for sample in samples], np.int64),
        is_val,
        kind,
        classes,
        labels,
    )


def _samples(folder: str, tar: str, number: int, labeled: bool) -> list[Sample]:
    """The samples of a tar file, which have an image and a label each; or all its images."""
    return patiently(lambda file: list(_read_tar(file, number, labeled)), f"{folder}/{tar}")


def _read_tar(file: str, number: int, labeled: bool) -> Iterator[Sample]:
    others = Counter[str]()
    try:
        with tarfile.open(file, "r:") as opened:
            # macOS adds `._NAME` to each NAME.
            members = (each for each in opened if each.isreg() and not _is_hidden(each.name))
            for key, group in itertools.groupby(members, lambda member: _key(member.name)[0]):
                by_suffix = {_key(member.name)[1]: member for member in group}
                images = [m for s, m in by_suffix.items() if f".{s}".endswith(IMAGE_SUFFIXES)]
                if not images:
                    others.update(list(by_suffix))
                    continue
                if not labeled:
                    for image in images:
                        yield Sample(number, image.name, image.offset_data, image.size, "")
                    continue
                label = next((by_suffix[name] for name in LABELS if name in by_suffix), None)
                if len(images) > 1 or label is None:
                    lack = f"has no label: none of .{', .'.join(LABELS)}"
                    reason = f"has {len(images)} images" if label is not None else lack
                    raise DataError(f"{file}: the sample {printable(key)} {reason}")
                where = f"{file}: {printable(label.name)}"
                if label.size > MOST_LABEL_BYTES:
                    must = f"a label may have at most {MOST_LABEL_BYTES}"
                    raise DataError(f"{where}: has {label.size} bytes: {must}")
                content = opened.extractfile(label)
                assert content is not None
                text = _label(where, label.name, content.read())
                yield Sample(number, images[0].name, images[0].offset_data, images[0].size, text)
    except (tarfile.TarError, EOFError) as error:
        raise DataError(f"{file} is no complete tar file ({error}): copy it again") from error
    if others:
        found = ", ".join(
            f"{count} .{printable(suffix)}" for suffix, count in others.most_common(5)
        )
        log.warning("%s: members without an image are ignored: %s", file, found)


def _is_hidden(name: str) -> bool:
    return name.rpartition("/")[2].startswith(".")


def _key(name: str) -> tuple[str, str]:
    """The key of a member, and what follows its first dot."""
    folder, slash, file = name.rpartition("/")
    key, _, suffix = file.partition(".")
    return folder + slash + key, suffix.lower()


def _label(where: str, name: str, content: bytes) -> str | list[str]:
    """One label, or a list of them. Raises DataError, which begins with `where`."""
    try:
        text = content.decode().strip()
        if not name.lower().endswith(".json"):
            return text
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: cannot be read: {error}") from error
    if isinstance(found, dict):
        keys = [key for key in LABEL_KEYS if key in found]
        if not keys:
            must = f"must hold one of {', '.join(LABEL_KEYS)}"
            raise DataError(
                f"{where}: holds {', '.join(map(printable, found)) or 'nothing'}: {must}"
            )
        found = found[keys[0]]
    labels = found if isinstance(found, list) else [found]
    if not all(type(each) in (str, int) for each in labels):
        raise DataError(f"{where}: the label must be a text, a whole number, or a list of these")
    texts = [str(each) for each in labels]
    return texts if isinstance(found, list) else texts[0]
