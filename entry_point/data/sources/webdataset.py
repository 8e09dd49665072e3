"""Images in tar files that others have written (data=webdataset), with their labels.

The files are as the `webdataset` package writes them, see tar_samples.py. All headers are read once
at the start; then images are read in any order, each with one read.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np

from entry_point.config.data_config import DataConfig
from entry_point.data.errors import DataError
from entry_point.data.sources.file_bytes import FileState
from entry_point.data.sources.folder import Tree
from entry_point.data.sources.rows import Cells, Labels, PathList, Ranges, Rows, Words
from entry_point.data.sources.splits import words_of_files
from entry_point.data.sources.tar_samples import read_samples
from entry_point.job.text import counted


def list_tars(tree: Tree, _: DataConfig, labeled: bool) -> Rows:
    """Returns the images of the tar files in a folder, or of a pattern with braces.

    A word in a tar file's path may name the split; then tar files of no split are not read. Raises
    DataError.
    """
    folder, every = _tar_files(tree)
    words, left_out = words_of_files(every, skip=labeled)
    tars = [*words]
    states = [FileState.of(f"{folder}/{tar}") for tar in tars]  # before the files are read
    found = [read_samples(f"{folder}/{tar}", labeled) for tar in tars]
    file_of = np.repeat(np.arange(len(tars), dtype=np.int32), [*map(len, found)])
    samples = [*itertools.chain.from_iterable(found)]
    names = PathList.of_names(
        f"{tars[tar]}/{sample.name}" for tar, sample in zip(file_of.tolist(), samples, strict=True)
    )
    offsets, lengths = (np.array([s[i] for s in samples], np.int64) for i in (1, 2))
    where = Ranges(folder, tars, file_of, offsets, lengths, states)
    cells: Labels | Cells = Labels.unknown(len(samples))
    if labeled:
        from entry_point.data.sources.labels import column_of  # it imports polars

        column = column_of("label", [sample.label for sample in samples])
        cells = Cells([column], tree.root)
    split_of = Words("the names of the tar files", [*words.values()], file_of, left_out)
    return Rows(counted(len(tars), "tar file"), names, where, cells, split_of)


def _tar_files(tree: Tree) -> tuple[str, list[str]]:
    """Returns a folder, and the paths of tar files below it."""
    root = tree.root
    if root.is_dir():
        tars = [file for file in tree.files() if file.lower().endswith(".tar")]
        if not tars:
            raise DataError(f"data.root={root} holds no tar file")
        return str(root), tars
    if root.is_file():
        return str(root.parent), [root.name]
    start, _, _ = str(root).partition("{")
    folder = start.rpartition("/")[0] or "."
    tars = [tar.removeprefix(f"{folder}/") for tar in expanded(str(root))]
    for tar in tars:
        if not Path(folder, tar).is_file():
            raise DataError(f"data.root={root}: no such file: {folder}/{tar}")
    return folder, tars


def expanded(pattern: str) -> list[str]:
    """Expands braces like a shell: `{000..146}` counts, `{train,val}` lists."""
    choices = list[list[str]]()
    for i, part in enumerate(re.split(r"\{([^{}]*)\}", pattern)):
        if i % 2 == 0:  # text between braces
            choices.append([part])
        elif counts := re.fullmatch(r"(\d+)\.\.(\d+)", part):
            first, last = counts.groups()
            numbers = range(int(first), int(last) + 1)
            choices.append([f"{number:0{len(first)}d}" for number in numbers])
        else:
            choices.append(part.split(","))
    return ["".join(chosen) for chosen in itertools.product(*choices)]
