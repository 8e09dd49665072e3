"""Images in the tar files of others (data=webdataset), with their labels beside them.

As the `webdataset` package writes them: the members of a sample follow each other and share a key,
their name up to its first dot. One is an image, and one of .cls, .txt or .json holds the label. All
headers are read once, at the start; then images are read in any order, each with one read.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import Tensor

from entry_point.config.data_config import DataConfig
from entry_point.data.errors import DataError
from entry_point.data.plan.samples import Ints
from entry_point.data.sources.file_bytes import FileState, read_bytes
from entry_point.data.sources.folder import visible_files
from entry_point.data.sources.listing import Cells, Labels, Listing, Words
from entry_point.data.sources.source import FileSource, PathList
from entry_point.data.sources.splits import words_of_files
from entry_point.data.sources.tar_samples import read_samples
from entry_point.job.program import counted, printable

log = logging.getLogger(__name__)


class TarSource(FileSource):
    """Images in tar files; the path of each is that of the tar file and the member's in it."""

    def __init__(
        self,
        folder: str,
        tars: Mapping[str, FileState],
        paths: PathList,
        places: Ints,
        labels: Labels,
    ) -> None:
        """`tars`: their state when they were listed. `places`: (N, 3) number of the tar file,
        offset and length in bytes."""
        super().__init__(paths, labels.values, labels.names, labels.kind, folder)
        self._tars, self._states, self._places = [*tars], [*tars.values()], places

    def status(self, index: int) -> tuple[int, int]:
        tar, _, length = self._places[index].tolist()
        return length, self._states[tar].changed

    def read(self, index: int) -> Tensor:
        tar, offset, length = self._places[index].tolist()
        return read_bytes(f"{self.folder}/{self._tars[tar]}", offset, length, self._states[tar])


def list_tars(root: Path, _: DataConfig, labeled: bool) -> Listing:
    """Returns the images of the tar files in the folder `root`, or of those of a pattern with
    braces.

    A word of a tar file's path may tell the split. Tar files of no split are not read if others are
    of one. Raises DataError.
    """
    folder, every = _tar_files(root)
    words, left_out = words_of_files([*every], skip=labeled)
    tars = {tar: every[tar] for tar in words}
    found = [(i, s) for i, tar in enumerate(tars) for s in read_samples(f"{folder}/{tar}", labeled)]
    names = [*tars]
    paths = PathList.of_names(f"{names[tar]}/{sample.name}" for tar, sample in found)
    places = np.array([(tar, sample.offset, sample.length) for tar, sample in found], np.int64)
    places = places.reshape(-1, 3)

    def source(rows: Ints, labels: Labels) -> TarSource:
        chosen = replace(labels, values=labels.values[rows])
        return TarSource(folder, tars, paths.only(rows), places[rows], chosen)

    def error(place: int, reason: str) -> DataError:
        return DataError(f"{folder}/{printable(paths[place])}: {reason}")

    cells: Labels | Cells = Labels.unknown(len(found))
    if labeled:
        from entry_point.data.sources.labels import column_of  # it imports polars

        cells = Cells([column_of("label", [sample.label for _, sample in found])], root, error)
    what = counted(len(tars), "tar file")
    split_of = Words("the names of the tar files", [*words.values()], places[:, 0], left_out)
    return Listing(what, paths, cells, split_of, source, paths.jpegs)


def _tar_files(root: Path) -> tuple[str, dict[str, FileState]]:
    """Returns a folder; the paths of tar files below it, and their state before they are read."""
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
    return folder, {tar: FileState.of(f"{folder}/{tar}") for tar in tars}


def expanded(pattern: str) -> list[str]:
    """Returns what a shell makes of the braces: `{000..146}` counts, `{train,val}` chooses."""
    choices = list[list[str]]()
    for i, part in enumerate(re.split(r"\{([^{}]*)\}", pattern)):
        if i % 2 == 0:  # between braces
            choices.append([part])
        elif counts := re.fullmatch(r"(\d+)\.\.(\d+)", part):
            first, last = counts.groups()
            numbers = range(int(first), int(last) + 1)
            choices.append([f"{number:0{len(first)}d}" for number in numbers])
        else:
            choices.append(part.split(","))
    return ["".join(chosen) for chosen in itertools.product(*choices)]
